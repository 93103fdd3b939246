"""Every operation of the API, asked by every role, by members of teams, and by tokens of jobs.

``TABLE`` says which scope opens which operation: whoever adds an operation adds it here. Members of a team and tokens
of a job reach the operations of ``OWN`` for their own jobs, and nothing of anyone else's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainstay.service.auth import access, users
from mainstay.service.auth.models import UserRow
from mainstay.service.auth.roles import UserRole
from mainstay.service.auth.service import NewToken, create_token
from mainstay.service.auth.tokens import Scope, TokenKind, matches
from mainstay.service.auth.users import Access
from mainstay.service.events.models import EventRow
from mainstay.service.incidents.models import FindingRow, IncidentRow, PlanRow

DOCUMENT: dict[str, Any] = json.loads((Path(__file__).resolve().parents[3] / "web" / "openapi.json").read_text())
OPERATIONS = {
    operation["operationId"]: (method.upper(), path)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}
TABLE = {
    "read": """
        admit change_password compare_cohorts compare_validation create_sign_in_code create_token
        end_session get_catalog get_cluster get_criterion get_device get_fault_localization
        get_fleet_heatmap get_fleet_heatmap_layout get_fleet_device_findings get_fleet_history get_fleet_jobs
        get_incident get_incident_nvsentinel get_job
        get_job_checkpoints get_job_progress get_job_signals get_job_steps get_job_transfers get_me get_node
        get_notification_config get_overview get_post_mortem get_post_mortem_markdown get_recovery_plan
        get_reliability_csv get_reliability_report get_remediation get_remediation_status get_sweep get_validation
        get_validation_plan get_xid_policy list_admission_pauses list_criteria list_dcgm_targets list_detector_policies
        list_device_history list_devices list_events list_fault_localizations list_findings
        list_incidents list_job_detectors list_job_recoveries list_job_requests list_jobs
        list_measured_cohorts list_nodes list_notifications list_recovery_plans list_remediations
        list_sessions list_signals list_silences list_simulation_policies list_suites list_sweeps
        list_tokens list_transitions list_validations list_xid_policy_versions list_xid_shadow
        preview_sweep query_telemetry read_blocks revoke_token run_simulation select_nodes watch
    """,
    "report": """
        claim_node_tasks post_bundle post_events post_frame post_gpud_states post_health_events post_pair_result
        post_progress post_results put_catalog put_job put_node
    """,
    "respond": """
        acknowledge_incident assign_incident comment_on_incident create_silence end_silence
    """,
    "act": """
        accept_remediation activate_xid_policy cancel_fault_localization cancel_validation
        change_sweep close_incident create_fault_localization create_job_request create_sweep
        create_validation create_validation_plan delete_sweep dismiss_remediation drain_node drain_nodes
        learn_criteria pause_admission preempt_validations put_detector_policy put_xid_overrides quarantine_node
        resume_admission retire_xid_policy run_sweep share_incident test_receiver test_xid_policy
        undrain_node undrain_nodes validate_node validate_nodes
    """,
    "admin": """
        create_dcgm_target create_user delete_dcgm_target delete_team disable_user enable_user
        export_audit_log list_audit_log list_teams list_users put_criteria put_notification_config
        put_team put_user_access put_user_password
    """,
    "public": """
        acknowledge_by_link begin_openid_sign_in enroll_node finish_openid_sign_in
        get_shared_incident get_sign_in_options sign_in sign_out
    """,
}
NEEDS = {operation: scope for scope, listed in TABLE.items() for operation in listed.split()}
ROLES = {
    "viewer": {"read"},
    "responder": {"read", "respond"},
    "operator": {"read", "respond", "act"},
    "admin": {"read", "respond", "act", "report", "admin"},
}
ENDS_SOMETHING = {"revoke_token", "sign_out", "watch"}
"""Asked by tests of their own: one ends who asks, the other does not end."""
SUFFIX = {access.Rule.JOB: "", access.Rule.INCIDENT: "-incident", access.Rule.PLAN: "-plan"}
"""Of the id that a rule is about, after the name of the job."""
T0 = 1_800_000_000.0
EVIDENCE = {"summary": "It waits.", "numbers": {}, "series": []}


def test_the_table_names_every_operation() -> None:
    assert sorted(NEEDS) == sorted(OPERATIONS)


def test_every_rule_for_own_jobs_is_of_an_operation() -> None:
    assert access.ROUTES.keys() <= OPERATIONS.keys()


@dataclass
class World:
    service: Any
    now: float

    def request(self, client: httpx.Client, operation: str, subject: str) -> httpx.Response:
        method, path = OPERATIONS[operation]
        for part in ("id", "name", "device", "digest", "token_id"):
            path = path.replace(f"{{{part}}}", subject)
        body = {} if method in {"POST", "PUT", "PATCH"} else None
        return client.request(method, path, json=body, follow_redirects=False)

    def token(self, **new: Any) -> httpx.Client:
        with self.service.services.database.session() as session:
            secret = create_token(session, NewToken(**{"kind": TokenKind.USER, **new}), now=self.now)[1]
        return self.service.client(secret)

    def user(self, name: str, **what: Any) -> httpx.Client:
        with self.service.services.database.session() as session:
            row = users.create_user(session, name, Access(**what), now=self.now)
        return self.token(name=f"of {name}", scopes=(Scope.ADMIN,), user_id=row.id)


def job_report(name: str) -> dict[str, Any]:
    ranks = [{"rank": 0, "dp": 0, "pp": 0, "tp": 0, "node": f"{name}-n", "device": None, "pid": 1, "state": "running"}]
    return {
        "name": name, "state": "running", "generation": 1, "command": f"{name}.py",
        "topology": {"dp": 1, "pp": 1, "tp": 1, "world_size": 1, "ranks": ranks},
        "protection": {"slots": 2, "parity_every": None, "parity_group": None, "disk_every": None, "state_bytes": []},
        "steps_total": None, "last_step": 1, "started_at": T0, "finished_at": None,
    }  # fmt: skip


def lay_job(session: Any, name: str) -> None:
    """An incident, a finding, and a plan of one job."""
    session.add(IncidentRow(
        id=f"{name}-incident", title=f"{name} stands still", summary=name, state="open", version=1, severity="warning",
        needs_operator=False, opened_at=T0, updated_at=T0, ranks=[], kinds=["comm_hang"], job=name,
    ))  # fmt: skip
    session.flush()
    session.add(FindingRow(
        id=f"{name}-finding", key=f"{name}-finding", kind="comm_hang", job=name, time=T0, severity="warning",
        detector="hang", confidence=0.9, evidence=EVIDENCE, active=False, incident_id=f"{name}-incident",
    ))  # fmt: skip
    session.add(EventRow(id=f"{name}-event", time=T0, kind="job_started", job=name, data={}, received_at=T0))
    session.add(PlanRow(
        id=f"{name}-plan", job=name, incident_id=f"{name}-incident", created_at=T0, generation=1,
        body={"failed_ranks": [0], "alternatives": [], "chosen": "peer_copy", "explanation": name},
    ))  # fmt: skip


@pytest.fixture(scope="module")
def world(lasting_service) -> World:
    lasting_service.hold_still()
    made = World(lasting_service, lasting_service.services.clock.now())
    admin = lasting_service.client()
    for name in ("vision-1", "speech-1"):
        assert admin.put(f"/v1/jobs/{name}", json=job_report(name)).status_code == 200
    with lasting_service.services.database.session() as session:
        users.put_team(session, "vision", ["vision-*"], [], now=made.now)
        lay_job(session, "vision-1")
        lay_job(session, "speech-1")
    return made


@pytest.mark.parametrize("role", ROLES)
def test_a_role_opens_what_the_table_says(world: World, role: str) -> None:
    client = world.user(f"r-{role}", role=UserRole(role))
    refused = {
        name for name in NEEDS if name not in ENDS_SOMETHING and world.request(client, name, "none").status_code == 403
    }
    assert refused == {name for name, scope in NEEDS.items() if scope not in {*ROLES[role], "public"}} - ENDS_SOMETHING


def members(world: World, prefix: str) -> Iterator[tuple[str, httpx.Client, set[str]]]:
    """Those who are bound to the job vision-1, and their scopes there."""
    for role in ("viewer", "responder", "operator", "admin"):
        yield role, world.user(f"{prefix}-{role}", teams=("vision",), team_role=UserRole(role)), ROLES[role]
    yield "team token", world.token(name="ci", scopes=(Scope.ACT,), team="vision"), ROLES["operator"]
    yield "job token", world.token(name="j", kind=TokenKind.JOB, job="vision-1"), {"read", "report"}
    yield "team job token", world.token(name="t", kind=TokenKind.JOB, any_job=True, team="vision"), {"read", "report"}
    yield "no role", world.user(f"{prefix}-none"), set()


def test_no_member_sees_or_changes_another_team(world: World) -> None:
    leaks: list[tuple[str, str, Any]] = []
    for who, client, _ in members(world, "foreign"):
        for operation, scope in NEEDS.items():
            if scope == "public" or operation in ENDS_SOMETHING:
                continue
            rule = access.ROUTES.get(operation)
            answer = world.request(client, operation, f"speech-1{SUFFIX.get(rule, '')}")
            is_open = rule in {access.Rule.OPEN, access.Rule.FILTERED} or scope == "report"
            if answer.status_code != 403 and not is_open:
                leaks.append((who, operation, answer.status_code))
            if answer.is_success and "speech" in answer.text:
                leaks.append((who, operation, answer.text[:200]))
    assert leaks == []


def test_a_member_reaches_its_own_jobs(world: World) -> None:
    wrong = []
    for who, client, scopes in members(world, "member"):
        for operation, rule in access.ROUTES.items():
            if rule not in SUFFIX:
                continue
            status = world.request(client, operation, f"vision-1{SUFFIX[rule]}").status_code
            if (status != 403) is not (NEEDS[operation] in scopes):
                wrong.append((who, operation, status))
    assert wrong == []


def test_lists_show_only_what_is_ones_own(world: World) -> None:
    client = world.user("l-viewer", teams=("vision",), team_role=UserRole.VIEWER)
    for path in ("/v1/jobs", "/v1/incidents", "/v1/findings", "/v1/recovery-plans", "/v1/events"):
        items = client.get(path).json()["items"]
        assert [item["id"].startswith("vision-1") for item in items] == [True], path


def test_a_reader_of_the_fleet_may_operate_for_a_team(world: World) -> None:
    client = world.user("both", role=UserRole.VIEWER, teams=("vision",), team_role=UserRole.OPERATOR)
    assert len(client.get("/v1/jobs").json()["items"]) == 2
    assert world.request(client, "create_job_request", "vision-1").status_code == 422
    assert world.request(client, "create_job_request", "speech-1").status_code == 403
    assert world.request(client, "acknowledge_incident", "vision-1-incident").status_code == 422
    assert world.request(client, "acknowledge_incident", "speech-1-incident").status_code == 403


def test_an_incident_that_stops_jobs_of_others_too_is_no_teams(world: World) -> None:
    with world.service.services.database.session() as session:
        lay_job(session, "vision-shared")
        session.flush()
        session.add(FindingRow(
            id="of-others", key="of-others", kind="comm_hang", job="speech-1", time=T0, severity="warning",
            detector="hang", confidence=0.9, evidence=EVIDENCE, active=False, incident_id="vision-shared-incident",
        ))  # fmt: skip
    client = world.user("shared", teams=("vision",), team_role=UserRole.VIEWER)
    assert client.get("/v1/incidents/vision-shared-incident").status_code == 403
    assert "shared" not in client.get("/v1/incidents").text
    with world.service.services.database.session() as session:
        gone = ((FindingRow, "of-others"), (FindingRow, "vision-shared-finding"), (EventRow, "vision-shared-event"))
        for kind, id_ in gone:
            session.delete(session.get_one(kind, id_))
        session.delete(session.get_one(PlanRow, "vision-shared-plan"))
        session.flush()
        session.delete(session.get_one(IncidentRow, "vision-shared-incident"))


def test_a_job_token_of_a_team_writes_its_jobs_only(world: World) -> None:
    client = world.token(name="w", kind=TokenKind.JOB, any_job=True, team="vision")
    assert client.put("/v1/jobs/vision-1", json=job_report("vision-1")).status_code == 200
    refused = client.put("/v1/jobs/speech-1", json=job_report("speech-1"))
    assert (refused.status_code, refused.json()["type"]) == (403, "urn:mainstay:problem:wrong-job")


def test_a_stream_says_that_a_job_changed_and_not_which(world: World) -> None:
    client = world.user("watcher", teams=("vision",), team_role=UserRole.VIEWER)
    admin = world.service.client()
    with client.stream("GET", "/v1/watch") as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith("retry")
        admin.put("/v1/jobs/speech-1", json=job_report("speech-1"))
        world.service.services.hub.poll()
        data = next(line for line in lines if line.startswith("data"))
    assert data == "data: {}"


def test_a_user_without_a_role_sees_nothing(world: World) -> None:
    client = world.user("nothing")
    assert client.get("/v1/nodes").status_code == 403
    assert client.get("/v1/jobs").status_code == 403


@pytest.mark.parametrize(
    ("job", "patterns", "own"),
    [("a-1", ["a-*"], True), ("b-1", ["a-*"], False), ("a", ["a"], True), ("a1", ["a"], False), ("x", ["*"], True)],
)
def test_patterns_of_jobs(job: str, patterns: list[str], own: bool) -> None:
    assert matches(job, patterns) is own


@pytest.mark.parametrize(("job", "pattern"), [("AxB", "a_b"), ("A-1", "a-*"), ("axb", "a_*")])
def test_the_database_matches_as_the_code_does(service_anywhere, job: str, pattern: str) -> None:
    from sqlalchemy import select

    with service_anywhere.services.database.session() as session:
        session.add(UserRow(id="u", name=job, display_name="", teams=[], created_at=0.0, changed_at=0.0))
        session.flush()
        found = session.scalar(select(UserRow.id).where(*access.of_jobs(UserRow.name, (pattern,))))
        assert (found is not None) is matches(job, (pattern,))
        assert session.scalar(select(UserRow.id).where(*access.of_jobs(UserRow.name, (f"{job[:2]}*",)))) == "u"
        assert session.scalar(select(UserRow.id).where(*access.of_jobs(UserRow.name, ()))) is None
