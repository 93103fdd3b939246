"""The columns of what commands list."""

from __future__ import annotations

from typing import Final

from mainstay.service.commands.output import Column, Json, age, since


def operator_of(incident: Json) -> str:
    """Who works on it, or that one is needed."""
    who = incident["assignee"] or incident["acknowledged_by"]
    return str(who) if who else "needed" if incident["needs_operator"] else ""


def covers(silence: Json) -> str:
    names = ("nodes", "racks", "switches", "cohorts", "jobs", "kinds", "detectors")
    text = "; ".join(f"{name} {','.join(silence[name])}" for name in names if silence[name])
    return f"{text} ({silence['hours']} {silence['timezone']})" if silence["hours"] else text


NODES: Final[tuple[Column, ...]] = (
    ("NODE", lambda node: node["name"], False),
    ("STATE", lambda node: node["state"], False),
    ("RACK", lambda node: node["rack"], False),
    ("COHORT", lambda node: node["cohort"], True),
    ("GPUS", lambda node: sum(device["kind"] == "gpu" for device in node["devices"]), True),
    ("REPORT", lambda node: age(node["age_seconds"]), False),
    ("INCIDENTS", lambda node: node["open_incidents"], False),
    ("JOBS", lambda node: ", ".join(node["jobs"]), False),
    ("VERDICT", lambda node: node["last_verdict"], True),
    ("REASON", lambda node: node["state_reason"], False),
)
MOVES: Final[tuple[Column, ...]] = (
    ("NODE", lambda item: item["node"], False),
    ("STATE", lambda item: item["state"], False),
    ("RESULT", lambda item: "accepted" if item["accepted"] else "refused", False),
    ("JOBS", lambda item: ", ".join(item["jobs"]), False),
    ("DETAIL", lambda item: item["detail"], False),
)
FIT_NODES: Final[tuple[Column, ...]] = (
    ("NODE", lambda node: node["node"], False),
    ("ADMISSION", lambda node: node["decision"], False),
    ("RACK", lambda node: node["rack"], False),
    ("COHORT", lambda node: node["cohort"], False),
    ("VALIDATED", lambda node: since(node["validated_at"]), False),
    ("REASON", lambda node: "; ".join(reason["text"] for reason in node["reasons"]), False),
)
INCIDENTS: Final[tuple[Column, ...]] = (
    ("ID", lambda incident: incident["id"][-8:], False),
    ("SEVERITY", lambda incident: incident["severity"], False),
    ("STATE", lambda incident: incident["state"], False),
    ("AGE", lambda incident: since(incident["opened_at"]), False),
    ("NODE", lambda incident: incident["node"], False),
    ("DEVICE", lambda incident: incident["device"], True),
    ("JOB", lambda incident: incident["job"], False),
    ("OPERATOR", operator_of, False),
    ("CAUSE", lambda incident: incident["cause"], True),
    ("TITLE", lambda incident: incident["title"], False),
)
SILENCES: Final[tuple[Column, ...]] = (
    ("ID", lambda silence: silence["id"][-8:], False),
    ("STATE", lambda silence: silence["state"], False),
    ("ENDS", lambda silence: since(silence["ends_at"]), False),
    ("NODES", lambda silence: silence["nodes_matched"], False),
    ("BY", lambda silence: silence["actor"], False),
    ("COVERS", covers, False),
    ("REASON", lambda silence: silence["reason"], False),
)
JOBS: Final[tuple[Column, ...]] = (
    ("JOB", lambda job: job["id"], False),
    ("STATE", lambda job: job["state"], False),
    ("STEP", lambda job: job["last_step"], False),
    ("STARTED", lambda job: since(job["started_at"]), False),
    ("INCIDENTS", lambda job: job["open_incidents"], False),
)
DEVICES: Final[tuple[Column, ...]] = (
    ("NODE", lambda device: device["node"], False),
    ("DEVICE", lambda device: device["id"], False),
    ("MODEL", lambda device: device["model"], False),
    ("SERIAL", lambda device: device["serial"], False),
    ("PRESENT", lambda device: "yes" if device["present"] else "no", False),
    ("UUID", lambda device: device["uuid"], True),
    ("PCI", lambda device: device["facts"].get("pci"), True),
)
FINDINGS: Final[tuple[Column, ...]] = (
    ("KIND", lambda finding: finding["kind"], False),
    ("SEVERITY", lambda finding: finding["severity"], False),
    ("AGE", lambda finding: since(finding["time"]), False),
    ("NODE", lambda finding: finding["entity"]["node"], False),
    ("DEVICE", lambda finding: finding["entity"]["device"], False),
    ("JOB", lambda finding: finding["entity"]["job"], False),
    ("RANK", lambda finding: finding["entity"]["rank"], True),
    ("CONFIDENCE", lambda finding: f"{finding['confidence']:.0%}", True),
    ("DETECTOR", lambda finding: finding["detector"], True),
    ("EVIDENCE", lambda finding: finding["evidence"]["summary"], False),
)


def _ratio(row: Json) -> str:
    return "unknown" if row["ettr"] is None else f"{row['ettr']:.2%}"


GOODPUT: Final[dict[str, tuple[Column, ...]]] = {
    "jobs": (
        ("JOB", lambda row: row["id"], False),
        ("RANKS", lambda row: row["ranks"], False),
        ("HOURS", lambda row: f"{row['hours']:,.1f}", False),
        ("ETTR", _ratio, False),
        ("RECOVERIES", lambda row: row["recoveries"], False),
        ("FAILED", lambda row: row["failed_recoveries"], True),
        ("STEPS LOST", lambda row: row["steps_lost"], True),
        ("LOST GPU HOURS", lambda row: f"{row['lost_gpu_hours']:,.1f}", False),
    ),
    "teams": (
        ("TEAM", lambda row: row["team"] or "(no team)", False),
        ("JOBS", lambda row: row["jobs"], False),
        ("GPU HOURS", lambda row: f"{row['gpu_hours']:,.1f}", False),
        ("ETTR", _ratio, False),
        ("RECOVERIES", lambda row: row["recoveries"], False),
        ("FAILED", lambda row: row["failed_recoveries"], True),
        ("LOST GPU HOURS", lambda row: f"{row['lost_gpu_hours']:,.1f}", False),
    ),
}
