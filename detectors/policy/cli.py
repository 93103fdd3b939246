"""``mainstay policy``: what an error code means, a check of a site's overrides, and what they would have changed.

The shell around a pure floor: only here are files read and the service asked. Offline commands need nothing but the
program. Exit codes: 0 done, 2 bad input, 5 the service did not take it.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from cyclopts import App, Parameter

from detectors.policy.load import load
from detectors.policy.model import Policy, Rule
from detectors.policy.reading import PolicyError
from detectors.policy.replay import Comparison, compare
from detectors.shell import BAD_INPUT, AsJson, InputError, one_line
from probes.words import Event

if TYPE_CHECKING:  # commands import what they need when they run
    from probes.transport import Transport

NO_SERVICE: Final = 5
_TEST_SECONDS: Final = 120.0
"""How long the service may take for a try-out of 10,000 events."""
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

policy = App(name="policy", help="What GPU error codes mean: show, check, try out and push a policy.")
Service = Annotated[str | None, Parameter(env_var="MAINSTAY_SERVICE")]
Token = Annotated[str | None, Parameter(env_var="MAINSTAY_TOKEN")]
TokenFile = Annotated[Path | None, Parameter(env_var="MAINSTAY_TOKEN_FILE")]


class ServiceError(Exception):
    """The service cannot be reached, or did not take what it was given."""


_one_line = one_line("mainstay policy", {InputError: BAD_INPUT, PolicyError: BAD_INPUT, ServiceError: NO_SERVICE})
"""Bad input, and a service that says no, end a command with one clear line on standard error."""


@policy.command
@_one_line
def show(file: Path | None = None, /, *, code: str | None = None, as_json: AsJson = False) -> int:
    """The effective policy: the built-in table, with a site's overrides if a file is given.

    Parameters
    ----------
    file
        Overrides, as TOML.
    code
        Only this code, e.g. 79 or sxid:20034.
    as_json
        Print JSON, and nothing else, on standard output.
    """
    rules = _chosen(_read_policy(file), code)
    if as_json:
        print(msgspec.json.encode([_as_dict(rule) for rule in rules]).decode())
        return 0
    _print(_rule_table(rules))
    return 0


@policy.command
@_one_line
def check(file: Path, /) -> int:
    """Whether overrides can be used; names table, key and fault if not.

    Parameters
    ----------
    file
        Overrides, as TOML.
    """
    made = _read_policy(file)
    changed = [rule.label for rule in _sorted(made) if rule.overridden]
    differ = "1 code differs" if len(changed) == 1 else f"{len(changed)} codes differ"
    print(f"{file}: good; {differ} from the built-in policy; digest {made.digest[:12]}")
    for start in range(0, len(changed), 12):
        print("  " + ", ".join(changed[start : start + 12]))
    return 0


@policy.command(name="test")
@_one_line
def try_out(
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
    """What overrides would have changed: findings, drains, and each statement that differs.

    With --events the built-in policy is compared with the overrides, offline; with --service the live policy with them,
    over the service's stored events.

    Parameters
    ----------
    file
        Overrides, as TOML.
    events
        Events as JSON, one a line, as GET /v1/events lists them.
    service
        Where the service listens.
    token
        A token that may act (a command line can be read by every user: prefer a file).
    token_file
        A file with the token.
    since
        From when on: Unix seconds, or how long ago (12h, 30d). A week if not given.
    as_json
        Print JSON, and nothing else, on standard output.
    """
    overrides = _text(file)
    after = load(overrides, name=str(file))
    start = _since(since)
    if events is not None:
        taken = [event for event in _events(events) if start is None or event.time >= start]
        told = _offline(compare(load(), after, taken), taken)
    elif service is not None:
        body = {"overrides": overrides} | ({} if start is None else {"since": start})
        told = _ask(_transport(service, token, token_file), "POST", "/policies/xid/test", body)
    else:
        raise InputError("give --events FILE, or --service URL with a token")
    if as_json:
        print(msgspec.json.encode(told).decode())
    else:
        _show_changes(told)
    return 0


@policy.command
@_one_line
def push(
    file: Path,
    /,
    *,
    reason: str,
    mode: Literal["draft", "shadow", "active"] = "shadow",
    service: Service = None,
    token: Token = None,
    token_file: TokenFile = None,
) -> int:
    """Give overrides to the service as a new version; new rules should begin as a shadow.

    Parameters
    ----------
    file
        Overrides, as TOML.
    reason
        Why; it stands beside the version.
    mode
        draft (kept only), shadow (beside the live policy, opens nothing) or active (it judges).
    service
        Where the service listens.
    token
        A token that may act (a command line can be read by every user: prefer a file).
    token_file
        A file with the token.
    """
    overrides = _text(file)
    load(overrides, name=str(file))
    if service is None:
        raise InputError("give --service URL with a token")
    body = {"overrides": overrides, "mode": mode, "reason": reason}
    told = _ask(_transport(service, token, token_file), "PUT", "/policies/xid/overrides", body)
    print(f"version {told['version']} is {told['mode']} (digest {told['digest'][:12]})")
    return 0


# reading


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not UTF-8: {error}") from error


def _read_policy(file: Path | None) -> Policy:
    return load() if file is None else load(_text(file), name=str(file))


def _events(file: Path) -> list[Event]:
    """Events of a file, one JSON object a line; fields that an event does not have are passed over."""
    found: list[Event] = []
    for number, line in enumerate(_text(file).splitlines(), 1):
        if not line.strip():
            continue
        try:
            found.append(msgspec.json.decode(line, type=Event))
        except (msgspec.DecodeError, RecursionError) as error:
            raise InputError(f"{file}: line {number}: no event: {error}") from error
    return found


def _since(text: str | None) -> float | None:
    """Unix seconds, from Unix seconds or from how long ago.

    Raises:
        InputError: it is neither.
    """
    if text is None:
        return None
    unit = _UNITS.get(text[-1:])
    try:
        return float(text) if unit is None else time.time() - float(text[:-1]) * unit
    except ValueError as error:
        raise InputError(f"--since {text!r} is neither Unix seconds nor a time like 90m, 12h or 30d") from error


def _transport(service: str, token: str | None, token_file: Path | None) -> Transport:
    from probes.transport import Transport

    secret = (token or "") if token_file is None else _text(token_file).strip()
    if not secret:
        raise InputError("no token: give --token-file, or --token")
    if not (secret.isascii() and secret.isprintable()):
        raise InputError("the token holds characters that no token has")
    try:
        return Transport(service, secret)
    except ValueError as error:
        raise InputError(str(error)) from error


def _ask(transport: Transport, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    from probes.transport import TransportError

    try:
        told: dict[str, Any] = transport.json(method, path, body, read_s=_TEST_SECONDS)
    except TransportError as error:
        raise ServiceError(str(error)) from error
    return told


def _sorted(made: Policy) -> list[Rule]:
    rules = [rule for rule in made.rules.values() if rule.code is not None]
    return sorted(rules, key=lambda rule: (rule.family.value != "xid", rule.code))


def _chosen(made: Policy, code: str | None) -> list[Rule]:
    if code is None:
        return _sorted(made)
    family, _, number = code.rpartition(":")
    rule = made.rules.get(f"{family or 'xid'}:{number}") if number.isdecimal() else None
    if rule is None:
        raise InputError(f"--code {code}: the table has no such code; write 79 or sxid:20034")
    return [rule]


# telling


def _as_dict(rule: Rule) -> dict[str, Any]:
    return {
        "family": rule.family,
        "code": rule.code,
        "title": rule.title,
        "group": rule.group,
        "severity": rule.ruling.severity,
        "remedy": rule.ruling.remedy,
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


def _rule_table(rules: list[Rule]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("code", "severity", "remedy", "group", "meaning"):
        table.add_column(name, no_wrap=name != "meaning")
    for rule in rules:
        more = "; ".join(part for part in (rule.repeat_text, rule.note if len(rules) == 1 else "") if part)
        meaning = escape(rule.title + (f" ({more})" if more else ""))
        mark = "*" if rule.overridden else ""
        table.add_row(
            rule.label + mark, rule.ruling.severity.value, rule.ruling.remedy.value, rule.group.value, meaning
        )
    return table


def _show_changes(told: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    print(f"{told['events']} events" + (" (older ones were left out)" if told["truncated"] else ""))
    for name in ("findings", "drains"):
        before, after = told["before"][name], told["after"][name]
        print(f"{name}: {before} before, {after} after ({after - before:+d})")
    if not told["changes"]:
        print("nothing changes")
        return
    table = Table(box=None, pad_edge=False)
    for name in ("time (UTC)", "node", "device", "code", "before", "after"):
        table.add_column(name)
    for change in told["changes"]:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(change["time"]))
        row = (at, change["node"], change["device"] or "", str(change["code"]), change["before"], change["after"])
        table.add_row(*map(escape, row))
    _print(table)
    if told["changes_total"] > len(told["changes"]):
        print(f"… and {told['changes_total'] - len(told['changes'])} more")


def _print(what: object) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200  # a log is not folded to the eighty columns of a terminal that is not there
    console.print(what)
