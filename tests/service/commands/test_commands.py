"""Commands of operators against a running service, as they are typed."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import update

from mainstay import cli
from mainstay.service.commands.contexts import context_file
from mainstay.service.commands.output import age
from mainstay.service.fleet.models import NodeRow
from mainstay.service.incidents.opening import open_incident
from mainstay.service.incidents.service import Context
from mainstay.service.stream.changes import Topic, record_change
from mainstay.service.validation.models import NodeVerdictRow
from tests.service.conftest import Running

Run = Callable[..., tuple[int, str, str]]
Json = dict[str, Any]


@pytest.fixture(autouse=True)
def no_context(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("MAINSTAY_SERVICE", "MAINSTAY_TOKEN", "MAINSTAY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def typed(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.build_app()(list(words))
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return typed


@pytest.fixture
def signed_in(service: Running, run: Run, tmp_path: Path, any_report: Json) -> Running:
    for name, rack in (("n1", "r1"), ("n2", "r2"), ("n3", "r2")):
        service.node_client(name).put(f"/v1/nodes/{name}", json={**any_report, "rack": rack})
    token = tmp_path / "token"
    token.write_text(service.admin_token)
    code, out, err = run("login", service.url, "--token-file", str(token))
    assert (code, err) == (0, "")
    assert out.startswith(f"signed in to {service.url} as first admin (")
    assert stat.S_IMODE(context_file().stat().st_mode) == 0o600
    return service


def open_one(service: Running, title: str = "the GPU fell off the bus") -> str:
    with service.services.database.session() as session:
        context = Context(session, service.settings, service.services.clock.now())
        row = open_incident(
            context, kinds=["xid"], severity="critical", job=None, node="n1", device=None, ranks=[], title=title,
            summary=title,
        )  # fmt: skip
        return row.id


def test_without_a_service_one_line_says_what_to_do(run: Run) -> None:
    told = "mainstay nodes: no service: give --service and --token-file, or run mainstay login\n"
    assert run("nodes") == (2, "", told)


def test_lists_for_people_and_for_programs(signed_in: Running, run: Run) -> None:
    code, out, _ = run("nodes", "--rack", "r2")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["NODE", "n2", "n3"]
    assert "COHORT" in run("nodes", "-o", "wide")[1]
    assert [node["name"] for node in json.loads(run("nodes", "--text", "n1", "-o", "json")[1])] == ["n1"]
    assert [node["name"] for node in yaml.safe_load(run("nodes", "-o", "yaml")[1])] == ["n1", "n2", "n3"]
    assert run("nodes", "--job", "none")[1] == "no nodes\n"
    assert run("nodes", "--state", "burnt")[0] == 5


def test_an_incident_is_acknowledged_by_the_end_of_its_id(signed_in: Running, run: Run) -> None:
    incident = open_one(signed_in)
    code, out, _ = run("status")
    assert code == 0
    assert out.startswith("nodes: 3 ")
    assert incident[-8:] in out
    code, out, _ = run("ack", incident[-8:], "--reason", "on my way")
    assert (code, out) == (0, "the GPU fell off the bus: acknowledged by first admin\n")
    assert "first admin" in run("incidents")[1]
    code, _, err = run("ack", "zzz")
    assert (code, err) == (2, "mainstay ack: 0 incidents have an ID that ends with 'zzz'\n")
    signed_in.client().post(f"/v1/incidents/{incident}:close", json={"reason": "done"})
    assert run("incidents")[1] == "no open incidents\n"
    assert incident[-8:] in run("incidents", "--all")[1]


def test_nodes_are_drained_and_returned_and_a_wrong_name_stops_no_other(signed_in: Running, run: Run) -> None:
    code, out, err = run("drain", "n1", "typo", "n2", "--reason", "rewiring", "--deadline", "30m")
    assert code == 5
    assert [line.split()[:3] for line in out.splitlines()[1:]] == [
        ["n1", "draining", "accepted"], ["n2", "draining", "accepted"], ["typo", "-", "refused"],
    ]  # fmt: skip
    assert err == "mainstay drain: typo: no node is called 'typo'\n"
    assert {run("nodes", "--text", name)[1].splitlines()[1].split()[1] for name in ("n1", "n2")} <= {
        "draining", "quarantined",
    }  # fmt: skip
    assert run("drain", "--reason", "x")[0] == 2
    assert run("drain", "n1")[0] == 2
    assert run("drain", "n1", "--reason", "x", "--deadline", "soon")[0] == 2


def test_one_node_is_drained_and_returned_as_before(signed_in: Running, run: Run) -> None:
    assert run("drain", "n1", "--reason", "rewiring") == (0, "n1: draining\n", "")
    code, _, err = run("drain", "typo", "--reason", "x")
    assert code == 5
    assert err.startswith("mainstay drain: ")
    assert run("undrain", "n1", "--reason", "done")[0] in {0, 5}  # an empty node is quarantined soon


def test_racks_are_previewed_confirmed_and_drained(signed_in: Running, run: Run, monkeypatch: Any) -> None:
    code, out, _ = run("drain", "--rack", "r2", "--preview")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["NODE", "n2", "n3"]
    assert run("drain", "--rack", "r2", "--reason", "x")[:2] == (2, "")  # no terminal, and no --yes
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    asked, answers = [], iter(("n", "y"))

    def answer_once(question: str) -> str:
        asked.append(question)
        return next(answers)

    monkeypatch.setattr("builtins.input", answer_once)
    assert run("drain", "--rack", "r2", "--reason", "rewiring")[0] == 2
    assert run("drain", "--rack", "r2", "--reason", "rewiring")[0] == 0
    assert asked == ["Drain 2 of 3 nodes, with 0 jobs? [y/N] "] * 2
    assert {run("nodes", "--text", name)[1].splitlines()[1].split()[1] for name in ("n2", "n3")} <= {
        "draining", "quarantined",
    }  # fmt: skip
    code, out, _ = run("drain", "n1", "--cohort", "none", "--reason", "x", "--yes")
    assert code == 5
    monkeypatch.setattr("builtins.input", lambda _: pytest.fail("asked in spite of --yes"))
    assert run("drain", "n1", "--rack", "r1", "--reason", "x", "--yes")[0] == 0


def test_a_silence_is_made_listed_and_ended(signed_in: Running, run: Run) -> None:
    code, out, _ = run("silence", "--rack", "r2", "--kind", "xid", "--for", "2h", "--reason", "a new switch")
    assert code == 0
    assert out.endswith("racks r2; kinds xid; 2 nodes match now\n")
    listed = run("silences")[1].splitlines()[1]
    assert listed.split()[:2] == [out.split()[1].rstrip(":"), "active"]
    assert "a new switch" in listed
    code, out, _ = run("silences", "--end", listed.split()[0])
    assert (code, out) == (0, "ended: racks r2; kinds xid\n")
    assert run("silences")[1] == "no silences\n"
    assert run("silence", "--for", "2h", "--reason", "everything")[0] == 5


def test_routes_are_checked_uploaded_and_shown(signed_in: Running, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "routes.toml"
    file.write_text('[receivers.a]\nkind = "slack"\nurl_secret = "slack-url"\n')
    assert run("notifications", "check", str(file)) == (0, f"{file}: valid; 1 receivers, 0 routes\n", "")
    code, out, _ = run("notifications", "push", str(file))
    assert code == 0
    assert "version 1 is in force: 1 receivers, 0 routes" in out
    assert "receiver a: the service finds no secret 'slack-url'" in out
    assert run("notifications", "show")[1] == file.read_text()
    code, _, err = run("notifications", "test", "b")
    assert code == 5
    assert "the configuration has no receiver 'b'" in err
    file.write_text("[[routes]]\nname = 1\n")
    code, _, err = run("notifications", "check", str(file))
    assert code == 2
    assert err.startswith(f"mainstay notifications: {file}: routes.0.name: ")


def test_a_damaged_context_is_named(run: Run) -> None:
    context_file().parent.mkdir(parents=True)
    context_file().write_text("{")
    code, _, err = run("status")
    assert code == 2
    assert err.startswith(f"mainstay status: {context_file()} cannot be read")


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (0.2, "0s"), (59, "59s"), (61, "1m"), (7300, "2h"), (200_000, "2d")]
)
def test_ages(seconds: float | None, text: str) -> None:
    assert age(seconds) == text


def test_nodes_that_are_fit_for_a_job(signed_in: Running, run: Run) -> None:
    code, out, err = run("nodes", "--fit", "2", "--rack", "r2")
    assert (code, out) == (1, "no fit nodes\n"), "they were never validated"
    assert err.startswith("mainstay nodes: 0 of 2 nodes are fit; others: 2 ")
    now = signed_in.services.clock.now()
    with signed_in.services.database.session() as session:
        for name in ("n2", "n3"):
            seen = {"state": "healthy", "last_seen_at": now, "cohort": "h100"}
            session.execute(update(NodeRow).where(NodeRow.name == name).values(seen))
            session.add(NodeVerdictRow(node=name, verdict="pass", power=1, suite="quick", validation_id="v", at=now))
            record_change(session, Topic.NODE, {"id": name, "reason": "test"})
    code, out, err = run("nodes", "--fit", "2", "--rack", "r2", "--cohort", "h100", "--job", "llm")
    assert (code, err) == (0, "")
    assert [line.split()[:4] for line in out.splitlines()[1:]] == [
        [name, "allow", "r2", "h100"] for name in ("n2", "n3")
    ]
    assert json.loads(run("nodes", "--fit", "1", "-o", "json")[1])["decision"] == "allow"
    assert yaml.safe_load(run("nodes", "--fit", "1", "-o", "yaml")[1])["considered"] == 3
    assert len(json.loads(run("nodes", "--cohort", "h100", "-o", "json")[1])) == 2
    assert run("nodes", "--fit", "1", "--state", "healthy")[0] == 2
    assert "r9" in run("nodes", "--fit", "1", "--rack", "r9")[2]


def test_jobs_devices_and_findings_are_listed(signed_in: Running, run: Run) -> None:
    admin = signed_in.client()
    ranks = [{"rank": 0, "dp": 0, "pp": 0, "tp": 0, "node": "n1", "device": None, "pid": 1, "state": "running"}]
    job = {
        "name": "llm-7", "state": "running", "generation": 1, "command": "train.py", "steps_total": None,
        "topology": {"dp": 1, "pp": 1, "tp": 1, "world_size": 1, "ranks": ranks}, "last_step": 12,
        "protection": {"slots": 2, "parity_every": None, "parity_group": None, "disk_every": None, "state_bytes": []},
        "started_at": 1_700_000_000.0, "finished_at": None,
    }  # fmt: skip
    assert admin.put("/v1/jobs/llm-7", json=job).status_code == 200
    code, shown, _ = run("jobs", "--state", "running")
    assert (code, "llm-7" in shown, "12" in shown) == (0, True, True)
    assert json.loads(run("jobs", "--state", "failed", "-o", "json")[1]) == []
    devices = json.loads(run("devices", "--node", "n1", "-o", "json")[1])
    assert {device["node"] for device in devices} == {"n1"}
    code, shown, _ = run("devices", "--node", "n1", "-o", "wide")
    assert (code, devices[0]["id"] in shown) == (0, True)
    assert run("findings", "--job", "none")[1].strip() == "no active findings"
    code, _, told = run("findings", "--kind", "nonsense")
    assert (code, "kind" in told, told.count("\n")) == (5, True, 1)


def test_a_report_says_what_failures_cost(signed_in: Running, run: Run) -> None:
    code, shown, _ = run("report", "--last", "7d")
    assert (code, shown.splitlines()[0].startswith("effective training time:")) == (0, True)
    assert json.loads(run("report", "-o", "json")[1])["summary"]["recoveries"] == 0
    for last in ("0d", "400d", "week"):
        assert run("report", "--last", last)[0] == 2
