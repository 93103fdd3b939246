"""SuperBench's rule files: read, checked, and refused in one line that names rule and field where they cannot be used.

Read: YAML by ``safe_load``'s loader. Semantics: SuperBench 0.12, ``analyzer/data_diagnosis.py`` and ``rule_base.py``.
A file that cannot be understood is refused before anything is judged; what merely lacks data is not refused here.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

import yaml

from mainstay.detectors.cli_errors import InputError
from mainstay.detectors.superbench.expression import SuperBenchCriterion, parse
from mainstay.detectors.superbench.names import shown

LARGEST: Final = 1 << 20
"""Characters of a rule file: the published ones have 2,000."""


class Function(StrEnum):
    """What a rule computes."""

    VARIANCE = "variance"
    VALUE = "value"
    MULTI_RULES = "multi_rules"
    FAILURE_CHECK = "failure_check"


FIELDS: Final = ("function", "criteria", "store", "categories", "metrics", "description")
"""What a diagnosis rule may say; the last is for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuperBenchRule:
    """One diagnosis rule. A stored one labels no node: what it counts, or its values, are for ``multi_rules``."""

    name: str
    function: Function | None
    """None: the values of its metrics are stored."""
    criterion: SuperBenchCriterion | None
    store: bool
    category: str
    metrics: tuple[str, ...]
    unknown_fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RuleFile:
    """The rules of a file, in the order in which they are judged: the file's, but stored rules before their readers."""

    rules: tuple[SuperBenchRule, ...]
    twice: tuple[str, ...] = ()
    """Keys that one mapping of the file has twice, with their lines: YAML keeps the last and loses the first."""
    late: tuple[str, ...] = ()
    """Rules that read a rule which comes later in the file."""


class _Loader(yaml.SafeLoader):
    """Remembers keys that a mapping has twice."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.twice: list[str] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen and key.value != "<<":
                    self.twice.append(f"{key.value} (line {key.start_mark.line + 1})")
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def load_mapping(text: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Rule name -> what the file says of it (``superbench.rules``), and the keys that stand twice.

    Raises:
        InputError: no YAML, or no rules in it.
    """
    if len(text) > LARGEST:
        raise InputError(f"more than {LARGEST >> 20} MiB is no rule file")
    loader: Any = None
    try:
        loader = _Loader(text)
        data = loader.get_single_data()
    except yaml.YAMLError as error:
        raise InputError(f"not YAML: {_where(error)}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"unusable YAML: {error}") from error
    finally:
        if loader is not None:
            loader.dispose()
    superbench = data.get("superbench") if isinstance(data, dict) else None
    rules = superbench.get("rules") if isinstance(superbench, dict) else None
    if not isinstance(rules, dict) or not rules:
        raise InputError("superbench.rules is missing or empty")
    return {str(name): rule for name, rule in rules.items()}, tuple(loader.twice)


def _where(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return problem if mark is None else f"line {mark.line + 1}: {problem}"


def read_rules(text: str) -> RuleFile:
    """The diagnosis rules of a file.

    Raises:
        InputError: the message names rule and field.
    """
    raw, twice = load_mapping(text)
    rules = {name: _rule(name, fields) for name, fields in raw.items()}
    late = _check_references(rules)
    return RuleFile(tuple(_ordered(rules, late)), twice, late)


def _rule(name: str, raw: Any) -> SuperBenchRule:
    if not isinstance(raw, dict):
        raise InputError(f"rule {name!r} must be a mapping, not {type(raw).__name__}")
    store = raw.get("store", False)
    if not isinstance(store, bool):
        raise InputError(f"rule {name!r}: store must be true or false, not {shown(store)}")
    stores_values = store and raw.get("criteria") is None
    function = None if stores_values else _function(name, raw)
    return SuperBenchRule(
        name=name,
        function=function,
        criterion=None if stores_values else _criterion(name, raw, function),
        store=store,
        category=category_of(name, raw),
        metrics=() if function is Function.MULTI_RULES else metrics_of(name, raw),
        unknown_fields=tuple(str(key) for key in raw if key not in FIELDS),
    )


def _function(name: str, raw: dict[str, Any]) -> Function:
    said = raw.get("function")
    if said is None:
        hint = " (store: false is the default: such a rule judges)" if raw.get("store") is False else ""
        raise InputError(f"rule {name!r}: function is missing{hint}")
    if not isinstance(said, str) or said not in set(Function):  # an enum's own error writes out any value in full
        raise InputError(f"rule {name!r}: function {shown(said)} is unknown; there are {', '.join(Function)}")
    return Function(said)


def _criterion(name: str, raw: dict[str, Any], function: Function | None) -> SuperBenchCriterion:
    said = raw.get("criteria")
    if not isinstance(said, str):
        what = "is missing" if said is None else f"must be a text, not {shown(said)}"
        raise InputError(f"rule {name!r}: criteria {what}")
    try:
        criterion = parse(said)
    except InputError as error:
        raise InputError(f"rule {name!r}: criteria {error}") from error
    if function is not Function.MULTI_RULES and not criterion.judges():
        raise InputError(f"rule {name!r}: criteria {shown(said)} must answer True or False for a number")
    return criterion


def category_of(name: str, raw: dict[str, Any]) -> str:
    """A rule's category; empty if it is left empty.

    Raises:
        InputError: it is missing, or no text.
    """
    if "categories" not in raw:
        raise InputError(f"rule {name!r}: categories is missing")
    category = raw["categories"]
    if category is not None and not isinstance(category, str):
        raise InputError(f"rule {name!r}: categories must be one text, not {shown(category)}")
    return category or ""


def metrics_of(name: str, raw: dict[str, Any]) -> tuple[str, ...]:
    """A rule's metrics entries.

    Raises:
        InputError: they are missing, or no texts.
    """
    entries = raw.get("metrics")
    if entries is None:
        raise InputError(f"rule {name!r}: metrics is missing{_misspelt(raw)}")
    if isinstance(entries, str):
        return (entries,)
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise InputError(f"rule {name!r}: metrics must be a list of texts 'benchmark/regex'")
    return tuple(entries)


def _misspelt(raw: dict[str, Any]) -> str:
    strange = [str(key) for key in raw if key not in FIELDS]
    return f"; what is {strange[0]!r}?" if strange else ""


def _check_references(rules: dict[str, SuperBenchRule]) -> tuple[str, ...]:
    """Rules that read a later one.

    Raises:
        InputError: a rule reads one that is not there, or that stores nothing.
    """
    late = []
    places = {name: place for place, name in enumerate(rules)}
    for rule in rules.values():
        for other in _reads(rule):
            if other not in rules:
                raise InputError(f"rule {rule.name!r}: criteria reads rule {other!r}, which does not exist")
            if not rules[other].store:
                raise InputError(f"rule {rule.name!r}: criteria reads rule {other!r}, which lacks store: true")
            if places[other] >= places[rule.name] and rule.name not in late:
                late.append(rule.name)
    return tuple(late)


def _reads(rule: SuperBenchRule) -> list[str]:
    if rule.function is not Function.MULTI_RULES or rule.criterion is None:
        return []
    return sorted(rule.criterion.references())


def _ordered(rules: dict[str, SuperBenchRule], late: tuple[str, ...]) -> list[SuperBenchRule]:
    if not late:
        return list(rules.values())
    sorter: TopologicalSorter[str] = TopologicalSorter({name: _reads(rule) for name, rule in rules.items()})
    try:
        return [rules[name] for name in sorter.static_order()]
    except CycleError as error:
        raise InputError(f"rules read each other in a circle: {' -> '.join(error.args[1])}") from error
