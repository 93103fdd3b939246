"""``mainstay policy``: show, test, and upload XID policies.

This module reads the files and calls the service; the layers below are pure. Offline commands need no service. Exit
codes: 0 done, 2 invalid input, 5 the service rejected the request or did not answer.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from cyclopts import App, Parameter

from mainstay.detectors.cli_errors import (
    BAD_INPUT,
    NO_SERVICE,
    AsJson,
    InputError,
    one_line,
    open_transport,
    parse_since,
    plain_table,
    print_json,
    print_unfolded,
)
from mainstay.detectors.policy.comparison import Comparison, compare
from mainstay.detectors.policy.load import load
from mainstay.detectors.policy.model import XidPolicy, XidRule
from mainstay.detectors.policy.toml_reader import PolicyError
from mainstay.probes.core_types import Event
from mainstay.probes.transport import TransportError

_TEST_SECONDS: Final = 120.0
"""The time limit of the service for a test with 10,000 events."""

policy = App(name="policy", help="Show, test, and upload XID policies.")
Service = Annotated[str | None, Parameter(env_var="MAINSTAY_SERVICE")]
Token = Annotated[str | None, Parameter(env_var="MAINSTAY_TOKEN")]
TokenFile = Annotated[Path | None, Parameter(env_var="MAINSTAY_TOKEN_FILE")]


_one_line = one_line("mainstay policy", {InputError: BAD_INPUT, PolicyError: BAD_INPUT, TransportError: NO_SERVICE})
"""Invalid input and a rejected request end a command with one clear line on standard error."""


@policy.command
@_one_line
def show(file: Path | None = None, /, *, code: str | None = None, as_json: AsJson = False) -> int:
    """Show the effective policy: the built-in table, with the overrides of a site if a file is given.

    Parameters
    ----------
    file
        Read overrides from this TOML file.
    code
        Show only this code, for example 79 or sxid:20034.
    as_json
        Print only JSON on standard output.
    """
    rules = _chosen(_read_policy(file), code)
    if as_json:
        print_json([_as_dict(rule) for rule in rules])
        return 0
    print_unfolded(_rule_table(rules))
    return 0


@policy.command
@_one_line
def check(file: Path, /) -> int:
    """Check overrides; an error names table, key, and problem.

    Parameters
    ----------
    file
        Read overrides from this TOML file.
    """
    made = _read_policy(file)
    changed = [rule.label for rule in _sorted(made) if rule.overridden]
    differ = "1 code differs" if len(changed) == 1 else f"{len(changed)} codes differ"
    print(f"{file}: valid; {differ} from the built-in policy; digest {made.digest[:12]}")
    for start in range(0, len(changed), 12):
        print("  " + ", ".join(changed[start : start + 12]))
    return 0


@policy.command(name="test")
@_one_line
def evaluate_overrides(
    file: Path,
    /,
    *,
    events: Path | None = None,
    service: Service = None,
    token: Token = None,
    token_file: TokenFile = None,
    since: str | None = None,
    as_json: AsJson = False,
) -> int:
    """Test overrides on past events: show the findings and drains that they change.

    With --events, compare the overrides with the built-in policy, offline. With --service, compare them with the active
    policy on the stored events of the service.

    Parameters
    ----------
    file
        Read overrides from this TOML file.
    events
        Read events from this file: one JSON object per line, as GET /v1/events returns them.
    service
        Connect to the service at this URL.
    token
        Use this token with scope act; prefer a file, as all users can read a command line.
    token_file
        Read the token from this file.
    since
        Start at this time (Unix seconds) or this long ago (12h, 30d); the default is a week ago.
    as_json
        Print only JSON on standard output.
    """
    overrides = _text(file)
    after = load(overrides, name=str(file))
    start = None if since is None else parse_since(since, time.time())
    if events is not None:
        taken = [event for event in _events(events) if start is None or event.time >= start]
        told = _offline(compare(load(), after, taken), taken)
    elif service is not None:
        body = {"overrides": overrides} | ({} if start is None else {"since": start})
        transport = open_transport(service, token, token_file)
        told = transport.json("POST", "/policies/xid:test", body, read_s=_TEST_SECONDS)
    else:
        raise InputError("give --events FILE, or --service URL with a token")
    if as_json:
        print_json(told)
    else:
        _show_changes(told)
    return 0


@policy.command
@_one_line
def upload(
    file: Path,
    /,
    *,
    reason: str,
    mode: Literal["draft", "shadow", "active"] = "shadow",
    service: Service = None,
    token: Token = None,
    token_file: TokenFile = None,
) -> int:
    """Upload overrides to the service as a new version; start new rules in shadow mode.

    Parameters
    ----------
    file
        Read overrides from this TOML file.
    reason
        Record this reason with the version.
    mode
        Choose draft (stored only), shadow (evaluated beside the active policy, without effect), or active.
    service
        Connect to the service at this URL.
    token
        Use this token with scope act; prefer a file, as all users can read a command line.
    token_file
        Read the token from this file.
    """
    overrides = _text(file)
    load(overrides, name=str(file))
    if service is None:
        raise InputError("give --service URL with a token")
    body = {"overrides": overrides, "mode": mode, "reason": reason}
    transport = open_transport(service, token, token_file)
    told = transport.json("PUT", "/policies/xid/overrides", body, read_s=_TEST_SECONDS)
    print(f"version {told['version']} is {told['mode']} (digest {told['digest'][:12]})")
    return 0


# reading


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not UTF-8: {error}") from error


def _read_policy(file: Path | None) -> XidPolicy:
    return load() if file is None else load(_text(file), name=str(file))


def _events(file: Path) -> list[Event]:
    """Events of a file, one JSON object a line; unknown fields are ignored."""
    found: list[Event] = []
    for number, line in enumerate(_text(file).splitlines(), 1):
        if not line.strip():
            continue
        try:
            found.append(msgspec.json.decode(line, type=Event))
        except (msgspec.DecodeError, RecursionError) as error:
            raise InputError(f"{file}: line {number}: no event: {error}") from error
    return found


def _sorted(made: XidPolicy) -> list[XidRule]:
    rules = [rule for rule in made.rules.values() if rule.code is not None]
    return sorted(rules, key=lambda rule: (rule.family.value != "xid", rule.code))


def _chosen(made: XidPolicy, code: str | None) -> list[XidRule]:
    if code is None:
        return _sorted(made)
    family, _, number = code.rpartition(":")
    rule = made.rules.get(f"{family or 'xid'}:{number}") if number.isdecimal() else None
    if rule is None:
        raise InputError(f"--code {code}: the table has no such code; write 79 or sxid:20034")
    return [rule]


# output


def _as_dict(rule: XidRule) -> dict[str, Any]:
    return {
        "family": rule.family,
        "code": rule.code,
        "title": rule.title,
        "group": rule.group,
        "severity": rule.ruling.severity,
        "recommended_action": rule.ruling.recommended_action,
        "repeat": rule.repeat_text,
        "architectures": sorted(rule.architectures),
        "note": rule.note,
        "overridden": rule.overridden,
    }


def _offline(found: Comparison, events: list[Event]) -> dict[str, Any]:
    """The same shape as the service's answer."""
    times = [event.time for event in events]
    return {
        "events": found.events,
        "since": min(times, default=0.0),
        "until": max(times, default=0.0),
        "truncated": False,
        "before": asdict(found.before),
        "after": asdict(found.after),
        "changes": [asdict(change) for change in found.changes],
        "changes_total": found.changed,
    }


def _rule_table(rules: list[XidRule]) -> Any:
    from rich.markup import escape

    table = plain_table("code", "severity", "recommended_action", "group", "meaning", folding="meaning")
    for rule in rules:
        more = "; ".join(part for part in (rule.repeat_text, rule.note if len(rules) == 1 else "") if part)
        meaning = escape(rule.title + (f" ({more})" if more else ""))
        label, ruling = rule.label + ("*" if rule.overridden else ""), rule.ruling
        table.add_row(label, ruling.severity, ruling.recommended_action, rule.group, meaning)
    return table


def _show_changes(told: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    print(f"{told['events']} events" + (" (older events are omitted)" if told["truncated"] else ""))
    for name in ("findings", "drains"):
        before, after = told["before"][name], told["after"][name]
        print(f"{name}: {before} before, {after} after ({after - before:+d})")
    if not told["changes"]:
        print("no changes")
        return
    table = Table(box=None, pad_edge=False)
    for name in ("time (UTC)", "node", "device", "code", "before", "after"):
        table.add_column(name)
    for change in told["changes"]:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(change["time"]))
        row = (at, change["node"], change["device"] or "", str(change["code"]), change["before"], change["after"])
        table.add_row(*map(escape, row))
    print_unfolded(table)
    if told["changes_total"] > len(told["changes"]):
        print(f"… and {told['changes_total'] - len(told['changes'])} more")
