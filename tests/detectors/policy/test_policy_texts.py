"""What ``mainstay policy`` prints, and how far a site's table may go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mainstay.detectors.cli_errors import InputError
from mainstay.detectors.policy import cli
from mainstay.detectors.policy.comparison import Comparison, PolicyTotals, StatementChange
from mainstay.detectors.policy.load import MAX_BYTES, builtin, load
from mainstay.detectors.policy.model import Family
from mainstay.detectors.policy.toml_reader import PolicyError
from mainstay.probes.core_types import Event, EventKind

NEW = 'title = "t"\ngroup = "firmware"\nseverity = "info"\nrecommended_action = "none"\n'
GRAVE = 'title = "t"\ngroup = "firmware"\nseverity = "critical"\nrecommended_action = "reset_gpu"\n'


@pytest.mark.parametrize(("code", "label"), [("79", "XID 79"), ("xid:79", "XID 79"), ("sxid:20034", "SXID 20034")])
def test_a_code_is_named_with_its_family_or_without(code: str, label: str) -> None:
    assert [rule.label for rule in cli._chosen(builtin(), code)] == [label]


@pytest.mark.parametrize("code", ["", "x", "-1", "xid:", "moon:79", "79:", "4711"])
def test_a_code_that_is_none_is_refused(code: str) -> None:
    with pytest.raises(InputError, match=f"--code {code}: the table has no such code; write 79 or sxid:20034"):
        cli._chosen(builtin(), code)


def test_codes_are_shown_by_family_and_number() -> None:
    keys = [(rule.family is Family.SXID, rule.code) for rule in cli._chosen(builtin(), None)]
    assert keys == sorted(keys)
    assert keys[0] == (False, 1)
    assert len(keys) == len(builtin().rules) - 2, "without the answer to unknown codes"


@pytest.mark.parametrize(
    ("codes", "said", "rows"),
    [(1, "1 code differs", 1), (12, "12 codes differ", 1), (13, "13 codes differ", 2)],
)
def test_a_good_file_lists_what_it_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], codes: int, said: str, rows: int
) -> None:
    path = tmp_path / "site.toml"
    path.write_text(f'[xid."900-{899 + codes}"]\n{NEW}')
    assert cli.check(path) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    start, _, digest = first.rpartition(" ")
    assert (start, len(digest)) == (f"{path}: valid; {said} from the built-in policy; digest", 12)
    labels = [f"XID {900 + n}" for n in range(codes)]
    assert lines == ["  " + ", ".join(labels[:12]), "  " + ", ".join(labels[12:])][:rows]


def test_one_code_is_shown_with_its_repeats_and_its_note(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    grows = '[xid.900.repeat.r]\ncount = 3\nhours = 1.5\nsame = "link"\n' + ruling("warning", "monitor")
    path.write_text(f'[xid.900]\n{GRAVE}note = "n"\ntries = 1\n{grows}')
    assert cli.show(path, code="900") == 0
    head, row = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head == ["code", "severity", "recommended_action", "group", "meaning"]
    text = "3 in 1.5 h (link): warning, monitor; after 1 failed action: inspect_node"
    assert " ".join(row) == f"XID 900* critical reset_gpu firmware t ({text}; n)"
    more = f"[xid.900]\n{GRAVE}tries = 2\n[xid.901]\n{NEW}"
    twice, none = (load(more).rule(Family.XID, code).repeat_text for code in (900, 901))
    assert (twice, none) == ("after 2 failed actions: inspect_node", None)


def change(n: int) -> StatementChange:
    return StatementChange(
        time=86_400.0 + n,
        node="n1",
        device=None if n else "g",
        code=79,
        before="nothing",
        after="info, none: x",
        event="e",
    )


def test_changes_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    events = [Event(id=str(t), time=float(t), kind=EventKind.XID, node="n1") for t in (7, 3)]
    found = Comparison(2, PolicyTotals(5, 3), PolicyTotals(4, 3), (change(0), change(1)), 5)
    told = cli._offline(found, events)
    assert (told["events"], told["since"], told["until"], told["truncated"], told["changes_total"]) == (
        2,
        3.0,
        7.0,
        False,
        5,
    )
    cli._show_changes(told)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "2 events",
        "findings: 5 before, 4 after (-1)",
        "drains: 3 before, 3 after (+0)",
        "time (UTC) node device code before after",
        "1970-01-02 00:00:00 n1 g 79 nothing info, none: x",
        "1970-01-02 00:00:01 n1 79 nothing info, none: x",
        "… and 3 more",
    ]
    none: dict[str, Any] = cli._offline(Comparison(0, PolicyTotals(), PolicyTotals(), (), 0), [])
    assert (none["since"], none["until"]) == (0.0, 0.0)
    cli._show_changes(none | {"truncated": True})
    assert capsys.readouterr().out.splitlines()[0] == "0 events (older events are omitted)"
    cli._show_changes(told | {"changes_total": 2})
    assert "more" not in capsys.readouterr().out


# the table


def test_a_table_has_its_bounds() -> None:
    text = f'[xid."1000-1999"]\n{NEW}[sxid.99999]\n{NEW}[xid.0]\n{NEW}#'
    most = load(text + "x" * (MAX_BYTES - len(text)))
    assert len(most.rules) == len(builtin().rules) + 1002
    assert (most.rule(Family.SXID, 99_999).title, most.rule(Family.XID, 0).title) == ("t", "t")
    for more, words in (
        (f'[xid."1000-2000"]\n{NEW}', "names 1001 codes, 1 to 1000 are allowed"),
        (f"[sxid.100000]\n{NEW}", "is no code"),
        (text + "x" * (MAX_BYTES - len(text) + 1), "has more than 262144 bytes"),
    ):
        with pytest.raises(PolicyError, match=words):
            load(more)


def ruling(severity: str, action: str) -> str:
    return f'severity = "{severity}"\nrecommended_action = "{action}"\n'


def test_the_worst_of_all_rulings_is_worked_out() -> None:
    parts = {
        "replace": '[xid.{}.repeat.r]\ncount = 2\nhours = 1\nsame = "device"\n' + ruling("critical", "replace"),
        "monitor": "[xid.{}.with.w]\ncodes = [1]\n" + ruling("warning", "monitor"),
        "reboot_node": '[xid.{}.says.s]\nwords = ["Non-Fatal"]\n' + ruling("critical", "reboot_node"),
        "inspect_node": "[xid.{}.bits.b]\nregister = 0\nbits = [1]\n" + ruling("critical", "inspect_node"),
    }
    site = "".join(f"[xid.{901 + n}]\n{NEW}{part.format(901 + n)}" for n, part in enumerate(parts.values()))
    made = load(f"{site}[xid.900]\n{NEW}" + "".join(part.format(900) for part in parts.values()))
    worst = [made.rule(Family.XID, code).worst for code in range(900, 905)]
    assert [one and one.recommended_action.value for one in worst] == ["replace", *parts]
    together = made.rule(Family.XID, 900)
    assert together.wordings[0].words == ("nonfatal",)
    assert (together.companies[0].minutes, together.registers[0].count, together.registers[0].alone) == (60.0, 1, False)


def test_settings_without_a_site_are_those_of_the_documentation() -> None:
    told = builtin().settings
    assert (told.together_seconds, told.spread) == (60.0, 4)
    assert (told.boot_grace_seconds, told.planned_seconds) == (300.0, 120.0)
    assert (told.tries, told.replace_tries, told.tries_days) == (2, 4, 7.0)
    assert (told.quiet_info_hours, told.quiet_warning_hours) == (1.0, 24.0)
    assert load("[settings]\ntwin_seconds = 20\nspread = 5\n").settings == replace(told, spread=5), (
        "of 0.1, without effect"
    )
    assert repr(builtin()) == f"Policy({builtin().digest[:12]}, {len(builtin().rules)} rules)"
