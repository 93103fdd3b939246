"""What the judge, the jobs and the validations remember: events, jobs, recoveries, incidents, validations, sweeps.

Revision ID: 0002
Revises: 0001
Created: 2026-11-21
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from service.kit.db import UnixTime

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "criteria",
        sa.Column("benchmark", sa.String(200), nullable=False),
        sa.Column("metric", sa.String(200), nullable=False),
        sa.Column("cohort", sa.String(200), nullable=False),
        sa.Column("better", sa.String(8), nullable=False),
        sa.Column("low", sa.Double(), nullable=True),
        sa.Column("high", sa.Double(), nullable=True),
        sa.Column("unit", sa.String(32), nullable=False),
        sa.Column("warn", sa.Double(), nullable=True),
        sa.Column("center", sa.Double(), nullable=True),
        sa.Column("allowed", sa.JSON(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("source", sa.String(200), nullable=False),
        sa.Column("learned_at", UnixTime(), nullable=False),
        sa.CheckConstraint("better IN ('higher', 'lower', 'equal')", name="better"),
        sa.PrimaryKeyConstraint("benchmark", "metric", "cohort", name="pk_criteria"),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("time", UnixTime(), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("node", sa.String(128), nullable=True),
        sa.Column("device", sa.String(128), nullable=True),
        sa.Column("job", sa.String(128), nullable=True),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=True),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("received_at", UnixTime(), nullable=False),
        sa.Column("judged_at", UnixTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
    )
    op.create_index("ix_events_job_time", "events", ["job", "time"])
    op.create_index("ix_events_node_time", "events", ["node", "time"])
    op.create_index("ix_events_time_id", "events", ["time", "id"])
    op.create_index(
        "ix_events_unjudged",
        "events",
        ["time"],
        sqlite_where=sa.text("judged_at IS NULL"),
        postgresql_where=sa.text("judged_at IS NULL"),
    )

    op.create_table(
        "incidents",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("title", sa.String(300), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("severity", sa.String(16), nullable=False),
        sa.Column("needs_human", sa.Boolean(), nullable=False),
        sa.Column("opened_at", UnixTime(), nullable=False),
        sa.Column("acting_at", UnixTime(), nullable=True),
        sa.Column("recovered_at", UnixTime(), nullable=True),
        sa.Column("verified_at", UnixTime(), nullable=True),
        sa.Column("closed_at", UnixTime(), nullable=True),
        sa.Column("updated_at", UnixTime(), nullable=False),
        sa.Column("due_at", UnixTime(), nullable=True),
        sa.Column("job", sa.String(128), nullable=True),
        sa.Column("node", sa.String(128), nullable=True),
        sa.Column("device", sa.String(128), nullable=True),
        sa.Column("ranks", sa.JSON(), nullable=False),
        sa.Column("kinds", sa.JSON(), nullable=False),
        sa.CheckConstraint("state IN ('open', 'acting', 'recovered', 'verified', 'closed')", name="state"),
        sa.PrimaryKeyConstraint("id", name="pk_incidents"),
    )
    op.create_index(
        "ix_incidents_due",
        "incidents",
        ["due_at"],
        sqlite_where=sa.text("due_at IS NOT NULL"),
        postgresql_where=sa.text("due_at IS NOT NULL"),
    )
    op.create_index("ix_incidents_job", "incidents", ["job"])
    op.create_index("ix_incidents_node", "incidents", ["node"])
    op.create_index("ix_incidents_opened_at_id", "incidents", ["opened_at", "id"])
    op.create_index("ix_incidents_state", "incidents", ["state"])

    op.create_table(
        "jobs",
        sa.Column("id", sa.String(128), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("command", sa.Text(), nullable=False),
        sa.Column("topology", sa.JSON(), nullable=False),
        sa.Column("protection", sa.JSON(), nullable=False),
        sa.Column("steps_total", sa.BigInteger(), nullable=True),
        sa.Column("last_step", sa.BigInteger(), nullable=True),
        sa.Column("started_at", UnixTime(), nullable=False),
        sa.Column("finished_at", UnixTime(), nullable=True),
        sa.Column("last_seen_at", UnixTime(), nullable=False),
        sa.CheckConstraint("state IN ('running', 'recovering', 'finished', 'failed')", name="state"),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
    )
    op.create_index("ix_jobs_started_at_id", "jobs", ["started_at", "id"])

    op.create_table(
        "node_verdicts",
        sa.Column("node", sa.String(128), nullable=False),
        sa.Column("verdict", sa.String(16), nullable=False),
        sa.Column("power", sa.Integer(), nullable=False),
        sa.Column("suite", sa.String(200), nullable=False),
        sa.Column("validation_id", sa.String(36), nullable=False),
        sa.Column("at", UnixTime(), nullable=False),
        sa.CheckConstraint("verdict IN ('pass', 'warn', 'fail', 'unknown')", name="verdict"),
        sa.PrimaryKeyConstraint("node", name="pk_node_verdicts"),
    )
    op.create_table(
        "recoveries",
        sa.Column("id", sa.String(128), nullable=False),
        sa.Column("job", sa.String(128), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=True),
        sa.Column("failed_at", UnixTime(), nullable=False),
        sa.Column("planned_at", UnixTime(), nullable=True),
        sa.Column("recovered_at", UnixTime(), nullable=True),
        sa.Column("verified_at", UnixTime(), nullable=True),
        sa.Column("failed_ranks", sa.JSON(), nullable=False),
        sa.Column("strategy", sa.String(32), nullable=True),
        sa.Column("steps_lost", sa.Integer(), nullable=True),
        sa.Column("predicted_seconds", sa.Double(), nullable=True),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("parts", sa.JSON(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=True),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("plan_id", sa.String(128), nullable=True),
        sa.Column("incident_id", sa.String(36), nullable=True),
        sa.CheckConstraint("outcome IN ('acting', 'recovered', 'verified', 'failed')", name="outcome"),
        sa.PrimaryKeyConstraint("id", name="pk_recoveries"),
    )
    op.create_index("ix_recoveries_incident_id", "recoveries", ["incident_id"])
    op.create_index("ix_recoveries_job_failed_at", "recoveries", ["job", "failed_at"])
    op.create_index("ix_recoveries_plan_id", "recoveries", ["plan_id"])

    op.create_table(
        "sweeps",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("suite", sa.String(200), nullable=False),
        sa.Column("schedule", sa.String(200), nullable=True),
        sa.Column("nodes", sa.JSON(), nullable=True),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.Column("next_run_at", UnixTime(), nullable=True),
        sa.Column("last_run_at", UnixTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_sweeps"),
        sa.UniqueConstraint("name", name="uq_sweeps_name"),
    )
    op.create_index(
        "ix_sweeps_due",
        "sweeps",
        ["next_run_at"],
        sqlite_where=sa.text("next_run_at IS NOT NULL"),
        postgresql_where=sa.text("next_run_at IS NOT NULL"),
    )

    op.create_table(
        "actions",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("incident_id", sa.String(36), nullable=False),
        sa.Column("recovery", sa.String(128), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("started_at", UnixTime(), nullable=False),
        sa.Column("finished_at", UnixTime(), nullable=True),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.CheckConstraint("state IN ('running', 'done', 'failed')", name="state"),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name="fk_actions_incident_id_incidents"),
        sa.PrimaryKeyConstraint("id", name="pk_actions"),
    )
    op.create_index("ix_actions_incident_id_started_at", "actions", ["incident_id", "started_at"])

    op.create_table(
        "findings",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("key", sa.String(600), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("node", sa.String(128), nullable=True),
        sa.Column("device", sa.String(128), nullable=True),
        sa.Column("job", sa.String(128), nullable=True),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.Column("time", UnixTime(), nullable=False),
        sa.Column("severity", sa.String(16), nullable=False),
        sa.Column("detector", sa.String(64), nullable=False),
        sa.Column("confidence", sa.Double(), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("cleared_at", UnixTime(), nullable=True),
        sa.Column("event_id", sa.String(36), nullable=True),
        sa.Column("incident_id", sa.String(36), nullable=True),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name="fk_findings_incident_id_incidents"),
        sa.PrimaryKeyConstraint("id", name="pk_findings"),
    )
    op.create_index("ix_findings_incident_id", "findings", ["incident_id"])
    op.create_index("ix_findings_job_time", "findings", ["job", "time"])
    op.create_index("ix_findings_node_time", "findings", ["node", "time"])
    op.create_index("ix_findings_time_id", "findings", ["time", "id"])
    op.create_index(
        "uq_findings_active_key",
        "findings",
        ["key"],
        unique=True,
        sqlite_where=sa.text("active"),
        postgresql_where=sa.text("active"),
    )

    op.create_table(
        "incident_timeline",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("incident_id", sa.String(36), nullable=False),
        sa.Column("time", UnixTime(), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name="fk_incident_timeline_incident_id_incidents"),
        sa.PrimaryKeyConstraint("id", name="pk_incident_timeline"),
    )
    op.create_index("ix_incident_timeline_incident_id_time_id", "incident_timeline", ["incident_id", "time", "id"])
    op.create_index("ix_incident_timeline_time_id", "incident_timeline", ["time", "id"])

    op.create_table(
        "plans",
        sa.Column("id", sa.String(128), nullable=False),
        sa.Column("job", sa.String(128), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("incident_id", sa.String(36), nullable=True),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name="fk_plans_incident_id_incidents"),
        sa.PrimaryKeyConstraint("id", name="pk_plans"),
    )
    op.create_index("ix_plans_created_at_id", "plans", ["created_at", "id"])
    op.create_index("ix_plans_incident_id", "plans", ["incident_id"])
    op.create_index("ix_plans_job", "plans", ["job"])

    op.create_table(
        "sweep_runs",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("sweep_id", sa.String(36), nullable=False),
        sa.Column("started_at", UnixTime(), nullable=False),
        sa.Column("fanned_out_at", UnixTime(), nullable=True),
        sa.Column("finished_at", UnixTime(), nullable=True),
        sa.ForeignKeyConstraint(["sweep_id"], ["sweeps.id"], name="fk_sweep_runs_sweep_id_sweeps", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_sweep_runs"),
    )
    op.create_index("ix_sweep_runs_sweep_id_started_at", "sweep_runs", ["sweep_id", "started_at"])

    op.create_table(
        "validations",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("node", sa.String(128), nullable=False),
        sa.Column("suite", sa.String(200), nullable=False),
        sa.Column("sweep_id", sa.String(36), nullable=True),
        sa.Column("run_id", sa.String(36), nullable=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("verdict", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.Column("deadline_at", UnixTime(), nullable=False),
        sa.Column("taken_at", UnixTime(), nullable=True),
        sa.Column("started_at", UnixTime(), nullable=True),
        sa.Column("finished_at", UnixTime(), nullable=True),
        sa.CheckConstraint("state IN ('queued', 'taken', 'running', 'done', 'expired')", name="state"),
        sa.CheckConstraint("verdict IN ('pass', 'warn', 'fail', 'unknown')", name="verdict"),
        sa.ForeignKeyConstraint(
            ["run_id"], ["sweep_runs.id"], name="fk_validations_run_id_sweep_runs", ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["sweep_id"], ["sweeps.id"], name="fk_validations_sweep_id_sweeps", ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_validations"),
        sa.UniqueConstraint("run_id", "node", name="uq_validations_run_id_node"),
    )
    op.create_index("ix_validations_created_at_id", "validations", ["created_at", "id"])
    op.create_index("ix_validations_node_created_at", "validations", ["node", "created_at"])
    op.create_index(
        "ix_validations_pending",
        "validations",
        ["deadline_at"],
        sqlite_where=sa.text("state IN ('queued', 'taken', 'running')"),
        postgresql_where=sa.text("state IN ('queued', 'taken', 'running')"),
    )
    op.create_index("ix_validations_sweep_id", "validations", ["sweep_id"])

    op.create_table(
        "validation_results",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("validation_id", sa.String(36), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("cohort", sa.String(200), nullable=False),
        sa.Column("benchmark", sa.String(200), nullable=False),
        sa.Column("metric", sa.String(200), nullable=False),
        sa.Column("unit", sa.String(32), nullable=False),
        sa.Column("better", sa.String(8), nullable=False),
        sa.Column("values", sa.JSON(), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("digest", sa.String(128), nullable=True),
        sa.Column("verdict", sa.String(16), nullable=False),
        sa.Column("device", sa.String(128), nullable=False),
        sa.Column("criterion", sa.JSON(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.CheckConstraint("verdict IN ('pass', 'warn', 'fail', 'unknown')", name="verdict"),
        sa.ForeignKeyConstraint(
            ["validation_id"],
            ["validations.id"],
            name="fk_validation_results_validation_id_validations",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_validation_results"),
    )
    op.create_index(
        "ix_validation_results_cohort_benchmark_metric", "validation_results", ["cohort", "benchmark", "metric"]
    )
    op.create_index("ix_validation_results_validation_id_position", "validation_results", ["validation_id", "position"])


def downgrade() -> None:
    op.drop_table("validation_results")
    op.drop_table("validations")
    op.drop_table("sweep_runs")
    op.drop_table("plans")
    op.drop_table("incident_timeline")
    op.drop_table("findings")
    op.drop_table("actions")
    op.drop_table("sweeps")
    op.drop_table("recoveries")
    op.drop_table("node_verdicts")
    op.drop_table("jobs")
    op.drop_table("incidents")
    op.drop_table("events")
    op.drop_table("criteria")
