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
from functools import cache
from importlib import resources
from typing import Any, Final

from mainstay.detectors.policy.device_history import plain
from mainstay.detectors.policy.model import (
    Architecture,
    Cooccurrence,
    ErrorGroup,
    Family,
    MessageMatch,
    PolicySettings,
    RegisterMatch,
    Repeat,
    RepeatScope,
    RuleAction,
    XidPolicy,
    XidRule,
)
from mainstay.detectors.policy.toml_reader import PolicyError, TomlTable
from mainstay.probes.core_types import RecommendedAction, Severity

MAX_BYTES: Final = 256 * 1024
MAX_CODE: Final = 99_999  # SXIDs have five digits
_MAX_SPAN: Final = 1000
_CODES: Final = re.compile(r"\d{1,5}(-\d{1,5})?")
_HOURS: Final = (1 / 60, 24.0 * 90)
_Tree = dict[str, Any]


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
    base = _builtin_tree()
    tree = _merge(base, site)
    policy = _policy(tree, name)
    changed = {key for key in policy.rules if _table_of(tree, key) != _table_of(base, key)}
    rules = {key: replace(rule, overridden=key in changed) for key, rule in policy.rules.items()}
    return replace(policy, rules=rules)


def _builtin_tree() -> _Tree:
    tree: _Tree = {"settings": {}}
    for family in Family:
        file = f"{family.value}.toml"
        text = resources.files("mainstay.detectors.policy").joinpath(file).read_text("utf-8")
        tree |= _parse(text, file)
    return tree


def _table_of(tree: _Tree, key: str) -> Any:
    family, _, code = key.partition(":")
    return tree.get(family, {}).get(code or "unknown")


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
    settings = _settings(TomlTable(f"{name}: settings", tree.get("settings", {})))
    rules: dict[str, XidRule] = {}
    for family in Family:
        for code, values in tree.get(family.value, {}).items():
            number = None if code == "unknown" else int(code)
            key = f"{family.value}:{'' if number is None else number}"
            rules[key] = _rule(TomlTable(f"{name}: {family.value}.{code}", values), family, number)
    canonical = json.dumps(tree, sort_keys=True, default=str).encode()
    return XidPolicy(rules=rules, settings=settings, digest=hashlib.sha256(canonical).hexdigest())


def _settings(table: TomlTable) -> PolicySettings:
    plain = PolicySettings()
    made = PolicySettings(
        together_seconds=table.number("together_seconds", plain.together_seconds, low=1, high=3600),
        twin_seconds=table.number("twin_seconds", plain.twin_seconds, low=0, high=300),
        spread=table.whole("spread", plain.spread, low=1, high=1000),
        boot_grace_seconds=table.number("boot_grace_seconds", plain.boot_grace_seconds, low=0, high=7200),
        planned_seconds=table.number("planned_seconds", plain.planned_seconds, low=0, high=7200),
        forgiven=table.read_words("forgiven", ErrorGroup, plain.forgiven),
        tries=table.whole("tries", plain.tries, low=1, high=20),
        replace_tries=table.whole("replace_tries", plain.replace_tries, low=1, high=40),
        tries_days=table.number("tries_days", plain.tries_days, low=0.01, high=90),
        quiet_info_hours=table.number("quiet_info_hours", plain.quiet_info_hours, low=_HOURS[0], high=_HOURS[1]),
        quiet_warning_hours=table.number(
            "quiet_warning_hours", plain.quiet_warning_hours, low=_HOURS[0], high=_HOURS[1]
        ),
    )
    table.end()
    return made


def _rule(table: TomlTable, family: Family, code: int | None) -> XidRule:
    if code is not None and not 0 <= code <= MAX_CODE:
        table.fail(f"{code} is not between 0 and {MAX_CODE}")
    made = XidRule(
        family=family,
        code=code,
        title=table.text("title", limit=120),
        group=table.word("group", ErrorGroup),
        ruling=_ruling(table, because=""),
        note=table.text("note", "", limit=1000),
        architectures=table.read_words("architectures", Architecture, frozenset()),
        tries=table.whole("tries", low=1, high=20) if "tries" in table else None,
        echo=table.flag("echo", default=False),
        leads=table.flag("leads", default=False),
        many=table.flag("many", default=False),
        repeats=tuple(_repeat(name, inner) for name, inner in table.tables("repeat")),
        companies=tuple(_company(name, inner) for name, inner in table.tables("with")),
        wordings=tuple(_wording(name, inner) for name, inner in table.tables("says")),
        registers=tuple(_bits(name, inner) for name, inner in table.tables("bits")),
    )
    table.end()
    parts: tuple[tuple[Repeat | Cooccurrence | MessageMatch | RegisterMatch, ...], ...] = (
        made.repeats, made.companies, made.wordings, made.registers,
    )  # fmt: skip
    rulings = [made.ruling, *(one.ruling for part in parts for one in part)]
    return replace(
        made,
        worst=max(rulings, key=lambda ruling: (list(Severity).index(ruling.severity), ruling.recommended_action.level)),
    )


def _ruling(table: TomlTable, because: str | None = None) -> RuleAction:
    severity, recommended_action = table.word("severity", Severity), table.word("recommended_action", RecommendedAction)
    if recommended_action.evicts and severity is not Severity.CRITICAL:
        table.fail(
            f"recommended action {recommended_action} takes the node out of service, "
            f"so severity must be critical, not {severity}"
        )
    return RuleAction(
        severity=severity,
        recommended_action=recommended_action,
        because=table.text("because", "", limit=200) if because is None else because,
    )


def _repeat(name: str, table: TomlTable) -> Repeat:
    made = Repeat(
        name=name,
        count=table.whole("count", low=2, high=1000),
        hours=table.number("hours", low=_HOURS[0], high=_HOURS[1]),
        same=table.word("same", RepeatScope),
        ruling=_ruling(table),
        enabled=table.flag("enabled", default=True),
    )
    table.end()
    return made


def _company(name: str, table: TomlTable) -> Cooccurrence:
    made = Cooccurrence(
        name=name,
        codes=table.wholes("codes", low=0, high=MAX_CODE),
        minutes=table.number("minutes", 60.0, low=0.1, high=24 * 60 * 7),
        ruling=_ruling(table),
        enabled=table.flag("enabled", default=True),
    )
    table.end()
    return made


def _wording(name: str, table: TomlTable) -> MessageMatch:
    words = tuple(plain(word) for word in table.texts("words", limit=100))
    made = MessageMatch(name=name, words=words, ruling=_ruling(table))
    table.end()
    return made


def _bits(name: str, table: TomlTable) -> RegisterMatch:
    made = RegisterMatch(
        name=name,
        register=table.whole("register", low=0, high=15),
        bits=table.wholes("bits", low=0, high=31),
        ruling=_ruling(table),
        alone=table.flag("alone", default=False),
        count=table.whole("count", 1, low=1, high=1000),
    )
    table.end()
    return made
