"""The tables of the first release, last part.

Revision ID: 0003
Revises: 0002
Created: 2026-11-23
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from mainstay.service.common.db import UnixTime, partial

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "incident_timeline",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("incident_id", sa.String(36), sa.ForeignKey("incidents.id"), nullable=False),
        sa.Column("time", UnixTime(), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
    )
    op.create_index("ix_incident_timeline_incident_id_time_id", "incident_timeline", ["incident_id", "time", "id"])
    op.create_index("ix_incident_timeline_time_id", "incident_timeline", ["time", "id"])
    op.create_table(
        "localization_tasks",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("localization_id", sa.String(36), sa.ForeignKey("localizations.id", ondelete="CASCADE"), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("node", sa.String(128), nullable=False),
        sa.Column("peer", sa.String(128), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("order", sa.JSON(), nullable=False),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.Column("taken_at", UnixTime(), nullable=True),
        sa.Column("deadline_at", UnixTime(), nullable=False),
        sa.CheckConstraint(
            "state IN ('queued', 'taken', 'done', 'expired')", name=op.f("ck_localization_tasks_state")
        ),
        sa.UniqueConstraint(
            "localization_id",
            "round",
            "position",
            "role",
            name=op.f("uq_localization_tasks_localization_id_round_position_role"),
        ),
    )
    op.create_index(
        "ix_localization_tasks_open", "localization_tasks", ["node", "deadline_at"], **partial("state IN ('queued', 'taken')")
    )
    op.create_table(
        "node_transitions",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("node", sa.String(128), sa.ForeignKey("nodes.name", ondelete="CASCADE"), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("time", UnixTime(), nullable=False),
        sa.Column("trigger", sa.String(16), nullable=False),
        sa.Column("from_state", sa.String(16), nullable=False),
        sa.Column("to_state", sa.String(16), nullable=False),
        sa.Column("owner", sa.String(16), nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("reason", sa.String(500), nullable=False),
        sa.Column("incident", sa.String(36), nullable=True),
        sa.UniqueConstraint("node", "version", name=op.f("uq_node_transitions_node_version")),
    )
    op.create_index("ix_node_transitions_node_time_id", "node_transitions", ["node", "time", "id"])
    op.create_index("ix_node_transitions_time", "node_transitions", ["time"])
    op.create_table(
        "plans",
        sa.Column("id", sa.String(128), primary_key=True),
        sa.Column("job", sa.String(128), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("incident_id", sa.String(36), sa.ForeignKey("incidents.id"), nullable=True),
    )
    op.create_index("ix_plans_created_at_id", "plans", ["created_at", "id"])
    op.create_index("ix_plans_incident_id", "plans", ["incident_id"])
    op.create_index("ix_plans_job", "plans", ["job"])
    op.create_table(
        "remediations",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("incident_id", sa.String(36), sa.ForeignKey("incidents.id"), nullable=False),
        sa.Column("node", sa.String(128), nullable=False),
        sa.Column("device", sa.String(128), nullable=True),
        sa.Column("hardware", sa.String(300), nullable=True),
        sa.Column("recommended_action", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("dry_run", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("rules", sa.JSON(), nullable=False),
        sa.Column("tried", sa.JSON(), nullable=False),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.Column("decided_at", UnixTime(), nullable=True),
        sa.Column("decided_by", sa.String(200), nullable=True),
        sa.Column("ended_at", UnixTime(), nullable=True),
        sa.Column("version_seen", sa.Integer(), nullable=False),
        sa.CheckConstraint(
            "state IN ('proposed', 'held', 'accepted', 'dismissed', 'done', 'superseded', 'failed')",
            name=op.f("ck_remediations_state"),
        ),
    )
    op.create_index("ix_remediations_created_at_id", "remediations", ["created_at", "id"])
    op.create_index("ix_remediations_hardware_ended_at", "remediations", ["hardware", "ended_at"])
    op.create_index("ix_remediations_incident_id_node", "remediations", ["incident_id", "node"])
    op.create_index("ix_remediations_node_created_at", "remediations", ["node", "created_at"])
    op.create_index(
        "uq_remediations_open", "remediations", ["incident_id", "node"], unique=True, **partial("state IN ('proposed', 'held', 'accepted')")
    )
    op.create_table(
        "sessions",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("token_id", sa.String(36), sa.ForeignKey("tokens.id", ondelete="CASCADE"), nullable=False),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.Column("expires_at", UnixTime(), nullable=False),
    )
    op.create_index("ix_sessions_expires_at", "sessions", ["expires_at"])
    op.create_index("ix_sessions_token_id", "sessions", ["token_id"])
    op.create_table(
        "sweep_runs",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("sweep_id", sa.String(36), sa.ForeignKey("sweeps.id", ondelete="CASCADE"), nullable=False),
        sa.Column("started_at", UnixTime(), nullable=False),
        sa.Column("fanned_out_at", UnixTime(), nullable=True),
        sa.Column("finished_at", UnixTime(), nullable=True),
    )
    op.create_index("ix_sweep_runs_sweep_id_started_at", "sweep_runs", ["sweep_id", "started_at"])
    op.create_table(
        "validations",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("node", sa.String(128), nullable=False),
        sa.Column("suite", sa.String(200), nullable=False),
        sa.Column("sweep_id", sa.String(36), sa.ForeignKey("sweeps.id", ondelete="SET NULL"), nullable=True),
        sa.Column("run_id", sa.String(36), sa.ForeignKey("sweep_runs.id", ondelete="SET NULL"), nullable=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("verdict", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.Column("deadline_at", UnixTime(), nullable=False),
        sa.Column("taken_at", UnixTime(), nullable=True),
        sa.Column("started_at", UnixTime(), nullable=True),
        sa.Column("finished_at", UnixTime(), nullable=True),
        sa.Column("benchmarks", sa.JSON(), nullable=True),
        sa.Column("progress", sa.JSON(), nullable=True),
        sa.Column("held", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("attempt", sa.Integer(), server_default="1", nullable=False),
        sa.Column("retries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("not_before_at", UnixTime(), nullable=True),
        sa.Column("timeout_seconds", sa.Double(), nullable=True),
        sa.Column("cancelled_at", UnixTime(), nullable=True),
        sa.Column("cancel_reason", sa.Text(), server_default="", nullable=False),
        sa.Column("cancel_told_at", UnixTime(), nullable=True),
        sa.Column("remeasure", sa.Integer(), server_default="0", nullable=False),
        sa.CheckConstraint(
            "state IN ('queued', 'taken', 'running', 'done', 'expired')", name=op.f("ck_validations_state")
        ),
        sa.CheckConstraint("verdict IN ('pass', 'warn', 'fail', 'unknown')", name=op.f("ck_validations_verdict")),
        sa.UniqueConstraint("run_id", "node", name=op.f("uq_validations_run_id_node")),
    )
    op.create_index("ix_validations_created_at_id", "validations", ["created_at", "id"])
    op.create_index("ix_validations_node_created_at", "validations", ["node", "created_at"])
    op.create_index(
        "ix_validations_pending", "validations", ["deadline_at"], **partial("state IN ('queued', 'taken', 'running')")
    )
    op.create_index("ix_validations_sweep_id", "validations", ["sweep_id"])
    op.create_table(
        "validation_results",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("validation_id", sa.String(36), sa.ForeignKey("validations.id", ondelete="CASCADE"), nullable=False),
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
        sa.Column("remeasured", sa.Integer(), server_default="0", nullable=False),
        sa.CheckConstraint(
            "verdict IN ('pass', 'warn', 'fail', 'unknown')", name=op.f("ck_validation_results_verdict")
        ),
    )
    op.create_index(
        "ix_validation_results_cohort_benchmark_metric", "validation_results", ["cohort", "benchmark", "metric"]
    )
    op.create_index("ix_validation_results_validation_id_position", "validation_results", ["validation_id", "position"])


def downgrade() -> None:
    for table in (
        "validation_results", "validations", "sweep_runs", "sessions", "remediations", "plans", "node_transitions",
        "localization_tasks", "incident_timeline",
    ):
        op.drop_table(table)
