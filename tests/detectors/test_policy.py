"""The policy as data: every code of the catalog answers, overrides are laid over it strictly, policy tests report."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainstay.detectors.finding import Finding
from mainstay.detectors.gpu.xid import XidDetector
from mainstay.detectors.policy import cli
from mainstay.detectors.policy.comparison import compare
from mainstay.detectors.policy.load import MAX_BYTES, builtin, load
from mainstay.detectors.policy.model import ErrorGroup, Family, XidPolicy
from mainstay.detectors.policy.toml_reader import PolicyError
from mainstay.probes.core_types import Event, EventKind, RecommendedAction, Severity

T = 1_800_000_000.0
UNLISTED = {139, 142, 166, 170}
"""Numbers below 174 that the catalog lacks."""


def rule(code: int, family: Family = Family.XID, policy: XidPolicy | None = None) -> Any:
    return (policy or builtin()).rule(family, code)


# the built-in table


def test_every_code_of_the_catalog_has_an_answer() -> None:
    known = {r.code for r in builtin().rules.values() if r.family is Family.XID}
    assert set(range(1, 174)) - known == UNLISTED
    assert rule(139).code is None
    assert rule(139).ruling.severity is Severity.WARNING, "an unexplained error is never nothing"


@pytest.mark.parametrize("key", sorted(builtin().rules))
def test_every_rule_is_sound(key: str) -> None:
    one = builtin().rules[key]
    assert one.title
    assert one.title[0].islower() or one.title.split()[0] == "NVLink:", "it stands inside a sentence"
    assert not one.title.endswith(".")
    rulings = [
        one.ruling,
        *(x.ruling for part in (one.repeats, one.companies, one.wordings, one.registers) for x in part),
    ]
    assert all(r.severity is Severity.CRITICAL for r in rulings if r.recommended_action.evicts)
    if one.group in {ErrorGroup.APP, ErrorGroup.ENGINE, ErrorGroup.LOG, ErrorGroup.ECHO}:
        assert not any(r.recommended_action.evicts for r in rulings), "what a program did never drains a node"
        assert one.ruling.severity is Severity.INFO


@pytest.mark.parametrize(
    ("codes", "recommended_action"),
    [
        ((8, 11, 13, 25, 31, 32, 39, 43, 60, 69, 80, 94, 105, 126, 137), RecommendedAction.RESTART_JOB),
        ((46, 48, 62, 95, 110, 119, 120, 136, 140, 143, 156, 158), RecommendedAction.RESET_GPU),
        ((79, 151, 167, 173), RecommendedAction.REBOOT_NODE),
        ((54,), RecommendedAction.INSPECT_NODE),
        ((64,), RecommendedAction.REPLACE),
        ((37, 38, 44, 63, 66, 67, 92, 93, 121, 155, 162, 163, 164), RecommendedAction.MONITOR),
        ((1, 20, 45, 58, 87, 141, 152, 160, 161), RecommendedAction.NONE),
    ],
)
def test_codes_mean_what_the_catalog_says(codes: tuple[int, ...], recommended_action: RecommendedAction) -> None:
    assert {code: rule(code).ruling.recommended_action for code in codes} == dict.fromkeys(codes, recommended_action)


@pytest.mark.parametrize(
    ("codes", "severity"),
    [
        ((11012, 11021, 12021, 15008, 19049, 19071, 24003, 22013, 20001, 20009, 10005), Severity.INFO),
        ((20012, 11004, 12028, 11001, 14017, 19047, 19070, 20034, 24007, 10004), Severity.WARNING),
        ((12020, 22003, 22011, 23001, 23017, 19084, 10003), Severity.CRITICAL),
    ],
)
def test_switch_codes_by_class(codes: tuple[int, ...], severity: Severity) -> None:
    found = {code: rule(code, Family.SXID).ruling.severity for code in codes}
    assert found == dict.fromkeys(codes, severity)
    assert all(rule(code, Family.SXID).code == code for code in codes), "they stand in the table"


def test_the_policy_goes_through_json_and_is_always_the_same() -> None:
    assert msgspec.json.decode(msgspec.json.encode(builtin()), type=XidPolicy) == builtin()
    assert load("").digest == builtin().digest == load("# nothing\n").digest
    assert len(builtin().digest) == 64


# overrides


def test_any_field_of_a_code_can_be_overridden_and_the_rest_stays() -> None:
    made = load('[xid.79]\nrecommended_action = "inspect_node"\n[xid.13.repeat.place]\nhours = 48')
    assert rule(79, policy=made).ruling.recommended_action is RecommendedAction.INSPECT_NODE
    assert rule(79, policy=made).title == rule(79).title
    assert rule(80, policy=made) is rule(80), "a rule without overrides is the built-in one"
    (place,) = (r for r in rule(13, policy=made).repeats if r.name == "place")
    assert (place.hours, place.count) == (48.0, 2)
    assert [r.label for r in made.rules.values() if r.overridden] == ["XID 13", "XID 79"]
    assert made.digest != builtin().digest


def test_codes_can_be_added_by_number_by_range_and_for_the_unknown() -> None:
    text = 'title = "t"\ngroup = "firmware"\nseverity = "info"\nrecommended_action = "none"\n'
    made = load(f'[xid.999]\n{text}[xid."500-502, 510"]\n{text}[sxid.unknown]\nseverity = "warning"\n')
    assert rule(999, policy=made).title == "t"
    assert {c for c in range(495, 515) if rule(c, policy=made).code} == {500, 501, 502, 510}
    assert rule(77_777, Family.SXID, made).ruling.severity is Severity.WARNING


def test_one_code_is_more_exact_than_a_range_wherever_it_stands() -> None:
    made = load('[xid.145]\nseverity = "info"\n[xid."144-150"]\nnote = "n"\nseverity = "warning"')
    assert [rule(c, policy=made).ruling.severity.value for c in (144, 145)] == ["warning", "info"]
    assert rule(145, policy=made).note == "n"


def test_windows_and_graces_are_settings() -> None:
    made = load('[settings]\nboot_grace_seconds = 600\ntries = 3\nforgiven = ["link"]')
    assert (made.settings.boot_grace_seconds, made.settings.tries) == (600.0, 3)
    assert made.settings.forgiven == {ErrorGroup.LINK}
    assert made.settings.together_seconds == builtin().settings.together_seconds


def test_a_repeat_rule_can_be_switched_off() -> None:
    made = load("[xid.31.repeat.jobs]\nenabled = false")
    assert not rule(31, policy=made).repeats[0].enabled
    assert rule(31, policy=made).repeat_text is None


BAD = {
    "[xid": "not TOML",
    "x" * (MAX_BYTES + 1): "more than",
    "a = " + "[" * 5000: "not TOML",
    "[dcgm.1]": "dcgm: is not a known table; there are settings, xid and sxid",
    "xid = 7": "xid: must hold one table a code, not 7",
    "[xid]\n79 = 1": "xid.79: must be a table, not 1",
    "[xid.seventy]": "xid.seventy: is no code",
    '[xid."-1"]': "xid.-1: is no code",
    '[xid."9-1"]': "names -7 codes" if False else "xid.9-1: names 0 codes",
    '[xid."1-90000"]': "names 90000 codes, 1 to 1000 are allowed",
    "[xid.79]\nrecommended_action = 'explode'": "xid.79.recommended_action: 'explode' is none of none, monitor",
    "[xid.79]\nseverity = 3": "xid.79.severity: 3 is none of info, warning, critical",
    "[xid.79]\nseverity = 'info'": "xid.79: recommended action reboot_node takes the node out of service, so severity",
    "[xid.13]\nrecommended_action = 'inspect_node'": "xid.13: recommended action inspect_node takes the node out of",
    "[xid.79]\ncolor = 'red'": "xid.79.color: is not a known key",
    "[xid.79]\ntitle = 7": "xid.79.title: must be text, not 7",
    f"[xid.79]\ntitle = '{'x' * 200}'": "xid.79.title: has 200 characters, 120 are allowed",
    '[xid.79]\nnote = "a\\u0000b"': "xid.79.note: holds characters that cannot be shown",
    "[xid.79]\ntries = true": "xid.79.tries: must be a whole number, not True",
    "[xid.79]\ntries = 0": "xid.79.tries: 0 is not between 1 and 20",
    "[xid.79]\necho = 1": "xid.79.echo: must be true or false, not 1",
    "[xid.79]\narchitectures = ['volta']": "xid.79.architectures: 'volta' is none of ampere, hopper",
    "[xid.79]\nrepeat = 3": "xid.79.repeat: must be a table, not 3",
    "[xid.79.repeat.x]\ncount = 2": "xid.79.repeat.x.hours: is missing",
    "[xid.13.repeat.place]\nhours = nan": "xid.13.repeat.place.hours: must be a number, not nan",
    "[xid.13.repeat.place]\nhours = inf": "xid.13.repeat.place.hours: must be a number, not inf",
    "[xid.13.repeat.place]\ncount = 1": "xid.13.repeat.place.count: 1 is not between 2 and 1000",
    "[xid.13.repeat.place]\nsame = 'moon'": "xid.13.repeat.place.same: 'moon' is none of place, jobs, device, link",
    "[xid.48.with.remap_failed]\ncodes = []": "xid.48.with.remap_failed.codes: must be a list of 1 to 200 values",
    "[xid.48.with.remap_failed]\ncodes = ['64']": "codes: must be a whole number, not '64'",
    "[xid.74.bits.parity]\nbits = [32]": "xid.74.bits.parity.bits: 32 is not between 0 and 31",
    "[settings]\nboot_grace_seconds = -1": "settings.boot_grace_seconds: -1 is not between 0 and 7200",
    "[settings]\nmoon = 1": "settings.moon: is not a known key",
    "[xid.9999]\ntitle = 't'": "xid.9999.group: is missing",
}


@pytest.mark.parametrize("text", BAD, ids=lambda t: t[:40])
def test_a_bad_override_is_named(text: str) -> None:
    with pytest.raises(PolicyError) as caught:
        load(text, name="site.toml")
    assert BAD[text] in str(caught.value)
    assert str(caught.value).startswith("site.toml: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("seed", range(20))
def test_no_text_crashes_the_reader(seed: int) -> None:
    chance = random.Random(seed)
    good = '[settings]\ntries = 3\n[xid.79]\nrecommended_action = "inspect_node"\n'
    good += "[xid.13.repeat.place]\ncount = 3\nhours = 1.5\n"
    for _ in range(200):
        text = list(good)
        for _ in range(chance.randint(1, 6)):
            text[chance.randrange(len(text))] = chance.choice("[]\"'={}.,-\n\\#0a9 \x7fé")
        said = "overrides: "
        try:
            load("".join(text))
        except PolicyError as error:
            said = str(error)
        assert said.startswith("overrides: ")


# try-outs


def xid(code: int, at: float, device: str = "GPU-1", **data: Any) -> Event:
    return Event(
        id=f"{code}-{at}-{device}", time=T + at, kind=EventKind.XID, node="n1", device=device,
        data={"code": code, "uptime": 86_400.0, **data},
    )  # fmt: skip


def test_a_try_out_names_what_changes_and_counts() -> None:
    events = [xid(13, 0.0), xid(79, 10.0, "GPU-2"), xid(43, 20.0, "GPU-3")]
    found = compare(builtin(), load('[xid.79]\nseverity = "warning"\nrecommended_action = "monitor"'), events)
    assert (found.events, found.changed) == (3, 1)
    assert (found.before.findings, found.before.drains) == (1, 1)
    assert (found.after.findings, found.after.drains) == (1, 0)
    (change,) = found.changes
    assert (change.code, change.device, change.time) == (79, "GPU-2", T + 10.0)
    assert change.before.startswith("critical, reboot_node: ")
    assert change.after.startswith("warning, monitor: ")
    assert compare(builtin(), builtin(), events).changes == ()


def test_a_try_out_does_not_depend_on_the_order_of_events() -> None:
    events = [xid(code, 100.0 * n, f"GPU-{n % 4}") for n, code in enumerate((13, 31, 48, 79, 74, 74, 94, 154) * 20)]
    other = load('[xid.74.repeat.link]\ncount = 3\n[xid.48]\nrecommended_action = "reboot_node"')
    plain = compare(builtin(), other, events)
    random.Random(1).shuffle(events)
    assert compare(builtin(), other, events) == plain
    assert plain.changes


def test_changes_are_bounded_and_say_so() -> None:
    events = [xid(79, n * 1.0, f"GPU-{n}") for n in range(40)]
    found = compare(builtin(), load('[xid.79]\nrecommended_action = "inspect_node"'), events, limit=10)
    assert (len(found.changes), found.changed) == (10, 40)


def test_each_event_is_judged_once_by_each_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []
    update = XidDetector.update

    def counted(self: XidDetector, events: Sequence[Event]) -> list[Finding]:
        judged.extend(event.id for event in events)
        return update(self, events)

    monkeypatch.setattr(XidDetector, "update", counted)
    events = [xid((13, 31, 45, 79)[n % 4], n * 30.0, f"GPU-{n % 64}", pid=n) for n in range(100)]
    compare(builtin(), load('[xid.79]\nrecommended_action = "inspect_node"'), events)
    assert judged == [event.id for event in events for _ in range(2)]


# the command


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "site.toml"
    path.write_text('[xid.79]\nrecommended_action = "inspect_node"\n')
    return path


def test_show_tells_the_table(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.show() == 0
    assert "XID 79 " in capsys.readouterr().out
    assert cli.show(site, code="79", as_json=True) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["recommended_action"], told["overridden"], told["family"]) == ("inspect_node", True, "xid")
    assert cli.show(code="sxid:20034") == 0
    assert "SXID 20034" in capsys.readouterr().out
    assert cli.show(code="4711") == 2
    assert "no such code" in capsys.readouterr().err


def test_check_says_good_or_names_the_fault(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.check(site) == 0
    assert "valid; 1 code differs" in capsys.readouterr().out
    site.write_text('[xid.79]\nrecommended_action = "explode"\n')
    assert cli.check(site) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"mainstay policy: {site}: xid.79.recommended_action: 'explode'")
    assert cli.check(site.parent / "nowhere.toml") == 2
    assert "No such file" in capsys.readouterr().err
    site.write_bytes(b"\xff\xfe")
    assert cli.check(site) == 2
    assert "not UTF-8" in capsys.readouterr().err


def test_overrides_are_tried_offline_on_recorded_events(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = site.with_name("events.jsonl")
    lines = [msgspec.json.encode(event).decode() for event in (xid(79, 0.0), xid(13, 500.0))]
    more = json.dumps({**json.loads(lines[0]), "id": "o", "kind": "job_started", "received_at": 1.0})
    recorded.write_text("\n".join([*lines, "", more]))
    assert cli.evaluate_overrides(site, events=recorded) == 0
    told = capsys.readouterr().out
    assert "drains: 1 before, 1 after (+0)" in told
    assert "critical, reboot_node" in told
    assert "critical, inspect" in told
    assert cli.evaluate_overrides(site, events=recorded, as_json=True, since=str(T + 100)) == 0
    told_json = json.loads(capsys.readouterr().out)
    assert (told_json["events"], told_json["changes"]) == (1, [])
    recorded.write_text("{}\n")
    assert cli.evaluate_overrides(site, events=recorded) == 2
    assert "line 1: no event" in capsys.readouterr().err


def test_what_the_command_cannot_do_is_said_in_one_line(
    site: Path, capsys: pytest.CaptureFixture[str], free_port: Any
) -> None:
    assert cli.evaluate_overrides(site) == 2
    assert "give --events FILE, or --service URL" in capsys.readouterr().err
    assert cli.evaluate_overrides(site, events=site, since="soon") == 2
    assert "--since 'soon'" in capsys.readouterr().err
    assert cli.upload(site, reason="r") == 2
    assert cli.upload(site, reason="r", service="http://127.0.0.1:1") == 2
    assert "no token" in capsys.readouterr().err
    assert cli.upload(site, reason="r", service="ftp://x", token="t") == 2
    assert "must look like" in capsys.readouterr().err
    assert cli.upload(site, reason="r", service=f"http://127.0.0.1:{free_port()}", token="t") == 5
    assert capsys.readouterr().err.startswith("mainstay policy: cannot reach http://127.0.0.1:")
