"""From TOML to a policy: the built-in table, a site's overrides laid over it field by field, and a digest of the two.

Overrides are TOML of the same shape. A table's name is a code or several (``[xid.79]``, ``[xid."144-150"]``,
``[xid."32,69"]``); what a site does not say stays as it is; a code that the table does not know needs all of title,
group, severity and recommended action. ``[settings]`` holds what is the same for all codes, ``[xid.unknown]`` the
answer to codes that is unknown.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from dataclasses import replace
from functools import cache, partial
from importlib import resources
from typing import Any, Final, TypeVar

from mainstay.detectors.policy.device_history import plain
from mainstay.detectors.policy.model import (
    MAX_CODE,
    Cooccurrence,
    Family,
    MessageMatch,
    PolicySettings,
    RegisterMatch,
    Repeat,
    RuleAction,
    XidPolicy,
    XidRule,
)
from mainstay.detectors.policy.toml_reader import PolicyError, TomlTable
from mainstay.probes.core_types import Severity

MAX_BYTES: Final = 256 * 1024
_MAX_SPAN: Final = 1000
_CODES: Final = re.compile(r"\d{1,5}(-\d{1,5})?")
_REMOVED: Final = frozenset({"twin_seconds"})
"""Settings of 0.1 that no rule reads: a site's file that has one still loads. 0.3 refuses it."""
_Tree = dict[str, Any]
_Part = TypeVar("_Part", Repeat, Cooccurrence, MessageMatch, RegisterMatch)


@cache
def builtin() -> XidPolicy:
    """The table that the program brings."""
    return _policy(_builtin_tree())


def load(overrides: str = "", *, name: str = "overrides") -> XidPolicy:
    """The built-in policy with a site's overrides.

    Args:
        overrides: TOML text; empty for none.
        name: what to call it in messages: a file's name.

    Raises:
        PolicyError: names the file, the table, the key and the fault.
    """
    if not overrides.strip():
        return builtin()
    site = _parse(overrides, name)
    return _policy(_merge(_builtin_tree(), site), name)


@cache
def _builtin_tree() -> _Tree:
    tree: _Tree = {"settings": {}}
    for family in Family:
        file = f"{family.value}.toml"
        text = resources.files("mainstay.detectors.policy").joinpath(file).read_text("utf-8")
        tree |= _parse(text, file)
    return tree


def _parse(text: str, name: str) -> _Tree:
    """TOML with every code's table written out.

    Raises:
        PolicyError: it is no TOML, too long, or a table's name is no code.
    """
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise PolicyError(f"{name}: has more than {MAX_BYTES} bytes")
    try:
        tree = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, UnicodeError) as error:
        raise PolicyError(f"{name}: not TOML: {error}") from error
    known = {"settings", *Family}
    for key in tree:
        if key not in known:
            raise PolicyError(f"{name}: {key[:60]}: is not a known table; there are settings, xid and sxid")
    return {key: values if key == "settings" else _by_code(f"{name}: {key}", values) for key, values in tree.items()}


def _by_code(where: str, values: Any) -> _Tree:
    """``{"39-41": {…}}`` → ``{"39": {…}, "40": …}``; a single code is more exact than a range, wherever it stands."""
    if not isinstance(values, dict):
        raise PolicyError(f"{where}: must hold one table a code, not {values!r:.60}")
    found: _Tree = {}
    for key in sorted(values, key=lambda key: key.isdecimal() or key == "unknown"):
        for code in _codes(where, key):
            if not isinstance(values[key], dict):
                raise PolicyError(f"{where}.{key}: must be a table, not {values[key]!r:.60}")
            found[code] = _merge(found.get(code, {}), values[key])
    return found


def _codes(where: str, key: str) -> list[str]:
    if key == "unknown":
        return [key]
    found: list[str] = []
    for part in key.replace(" ", "").split(","):
        if not _CODES.fullmatch(part):
            raise PolicyError(f'{where}.{key[:60]}: is no code; write 79, "39-41", "32,69" or unknown')
        first, _, last = part.partition("-")
        span = range(int(first), int(last or first) + 1)
        if not 1 <= len(span) <= _MAX_SPAN:
            raise PolicyError(f"{where}.{key[:60]}: names {len(span)} codes, 1 to {_MAX_SPAN} are allowed")
        found.extend(map(str, span))
    return found


def _merge(base: _Tree, over: _Tree) -> _Tree:
    """``over`` laid on ``base``: tables are joined, everything else replaced. Neither is changed."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _policy(tree: _Tree, name: str = "built-in") -> XidPolicy:
    values = tree.get("settings", {})
    if isinstance(values, dict):
        values = {key: value for key, value in values.items() if key not in _REMOVED}
    settings = TomlTable(f"{name}: settings", values).read(PolicySettings)
    rules: dict[str, XidRule] = {}
    base = _builtin_tree()
    for family in Family:
        for code, values in tree.get(family.value, {}).items():
            number = None if code == "unknown" else int(code)
            key = f"{family.value}:{'' if number is None else number}"
            built_in = base[family.value].get(code)
            if values is built_in and tree is not base:
                rules[key] = builtin().rules[key]
                continue
            table = TomlTable(f"{name}: {family.value}.{code}", values)
            rules[key] = _rule(table, family, number, overridden=values != built_in)
    canonical = json.dumps(tree, sort_keys=True, default=str).encode()
    return XidPolicy(rules=rules, settings=settings, digest=hashlib.sha256(canonical).hexdigest())


def _rule(table: TomlTable, family: Family, code: int | None, *, overridden: bool) -> XidRule:
    if code is not None and not 0 <= code <= MAX_CODE:
        table.fail(f"{code} is not between 0 and {MAX_CODE}")
    made = table.read(
        XidRule,
        family=family,
        code=code,
        ruling=lambda: _ruling(table, because=""),
        repeats=lambda: _parts(table, "repeat", Repeat),
        companies=lambda: _parts(table, "with", Cooccurrence),
        wordings=lambda: tuple(map(_plain_words, _parts(table, "says", MessageMatch))),
        registers=lambda: _parts(table, "bits", RegisterMatch),
        worst=None,
        overridden=overridden,
    )
    parts: tuple[tuple[Repeat | Cooccurrence | MessageMatch | RegisterMatch, ...], ...] = (
        made.repeats, made.companies, made.wordings, made.registers,
    )  # fmt: skip
    rulings = [made.ruling, *(one.ruling for part in parts for one in part)]
    return replace(made, worst=max(rulings, key=lambda ruling: ruling.weight))


def _ruling(table: TomlTable, **given: Any) -> RuleAction:
    ruling = table.take_values(RuleAction, **given)
    if ruling.recommended_action.evicts and ruling.severity is not Severity.CRITICAL:
        table.fail(
            f"recommended action {ruling.recommended_action} takes the node out of service, "
            f"so severity must be critical, not {ruling.severity}"
        )
    return ruling


def _parts(table: TomlTable, key: str, kind: type[_Part]) -> tuple[_Part, ...]:
    return tuple(inner.read(kind, name=name, ruling=partial(_ruling, inner)) for name, inner in table.tables(key))


def _plain_words(match: MessageMatch) -> MessageMatch:
    return replace(match, words=tuple(map(plain, match.words)))
