"""The tables of the first release, first part; later changes get migrations of their own.

Revision ID: 0001
Revises:
Created: 2026-11-23
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from mainstay.service.common.db import UnixTime, partial

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "migration_requests",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("job", sa.String(128), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("node", sa.String(128), nullable=True),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.Column("reason", sa.String(500), nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("detail", sa.String(500), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("steps_lost", sa.BigInteger(), nullable=True),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.Column("updated_at", UnixTime(), nullable=False),
        sa.Column("target", sa.String(128), nullable=True),
        sa.Column("finding", sa.String(36), nullable=True),
        sa.Column("remediation", sa.String(36), nullable=True),
        sa.CheckConstraint("state IN ('pending', 'accepted', 'completed', 'rejected', 'failed')", name=op.f("ck_migration_requests_state")),
    )
    op.create_index("ix_migration_requests_job_created_at_id", "migration_requests", ["job", "created_at", "id"])
    op.create_index("ix_migration_requests_remediation", "migration_requests", ["remediation"])
    op.create_table(
        "catalogs",
        sa.Column("digest", sa.String(16), primary_key=True),
        sa.Column("narrow", sa.JSON(), nullable=False),
        sa.Column("wide", sa.JSON(), nullable=False),
        sa.Column("created_at", UnixTime(), nullable=False),
    )
    op.create_table(
        "changes",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("topic", sa.String(32), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("created_at", UnixTime(), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "criteria",
        sa.Column("benchmark", sa.String(200), primary_key=True),
        sa.Column("metric", sa.String(200), primary_key=True),
        sa.Column("cohort", sa.String(200), primary_key=True),
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
        sa.Column("distribution", sa.JSON(), nullable=True),
        sa.Column("sessions", sa.JSON(), nullable=True),
        sa.CheckConstraint("better IN ('higher', 'lower', 'equal')", name=op.f("ck_criteria_better")),
    )
    op.create_table(
        "dcgm_targets",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("url", sa.String(500), nullable=False, unique=True),
        sa.Column("node", sa.String(128), nullable=True),
        sa.Column("interval_seconds", sa.Double(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.Column("due_at", UnixTime(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("last_scrape_at", UnixTime(), nullable=True),
        sa.Column("last_error", sa.String(500), nullable=True),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("memory", sa.JSON(), nullable=False),
    )
    op.create_index("ix_dcgm_targets_created_at_id", "dcgm_targets", ["created_at", "id"])
    op.create_index("ix_dcgm_targets_due_at", "dcgm_targets", ["due_at"])
    op.create_table(
        "events",
        sa.Column("id", sa.String(36), primary_key=True),
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
    )
    op.create_index("ix_events_job_time", "events", ["job", "time"])
    op.create_index("ix_events_node_time", "events", ["node", "time"])
    op.create_index("ix_events_time_id", "events", ["time", "id"])
    op.create_index("ix_events_unjudged", "events", ["time"], **partial("judged_at IS NULL"))
    op.create_table(
        "idempotency_keys",
        sa.Column("scope", sa.String(64), primary_key=True),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("body", sa.JSON(), nullable=True),
    )
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"])
    op.create_table(
        "incidents",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("title", sa.String(300), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("severity", sa.String(16), nullable=False),
        sa.Column("needs_operator", sa.Boolean(), nullable=False),
        sa.Column("opened_at", UnixTime(), nullable=False),
        sa.Column("recovering_at", UnixTime(), nullable=True),
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
        sa.Column("cause", sa.String(32), nullable=True),
        sa.CheckConstraint(
            "state IN ('open', 'recovering', 'recovered', 'verified', 'closed')", name=op.f("ck_incidents_state")
        ),
    )
    op.create_index("ix_incidents_due", "incidents", ["due_at"], **partial("due_at IS NOT NULL"))
    op.create_index("ix_incidents_job", "incidents", ["job"])
    op.create_index("ix_incidents_node", "incidents", ["node"])
    op.create_index("ix_incidents_opened_at_id", "incidents", ["opened_at", "id"])
    op.create_index("ix_incidents_state", "incidents", ["state"])
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(128), primary_key=True),
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
        sa.CheckConstraint("state IN ('running', 'recovering', 'finished', 'failed')", name=op.f("ck_jobs_state")),
    )
    op.create_index("ix_jobs_started_at_id", "jobs", ["started_at", "id"])
    op.create_table(
        "localizations",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("nodes", sa.JSON(), nullable=False),
        sa.Column("partners", sa.JSON(), nullable=False),
        sa.Column("addresses", sa.JSON(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("verdict", sa.JSON(), nullable=True),
        sa.Column("state_reason", sa.Text(), nullable=False),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.Column("finished_at", UnixTime(), nullable=True),
        sa.CheckConstraint("state IN ('running', 'done', 'cancelled')", name=op.f("ck_localizations_state")),
    )
    op.create_index("ix_localizations_created_at_id", "localizations", ["created_at", "id"])
    op.create_table(
        "node_verdicts",
        sa.Column("node", sa.String(128), primary_key=True),
        sa.Column("verdict", sa.String(16), nullable=False),
        sa.Column("power", sa.Integer(), nullable=False),
        sa.Column("suite", sa.String(200), nullable=False),
        sa.Column("validation_id", sa.String(36), nullable=False),
        sa.Column("at", UnixTime(), nullable=False),
        sa.CheckConstraint("verdict IN ('pass', 'warn', 'fail', 'unknown')", name=op.f("ck_node_verdicts_verdict")),
    )
    op.create_table(
        "nodes",
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("state_reason", sa.String(500), nullable=False),
        sa.Column("state_version", sa.Integer(), nullable=False),
        sa.Column("state_since", UnixTime(), nullable=True),
        sa.Column("owner", sa.String(16), nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("drain_deadline_at", UnixTime(), nullable=True),
        sa.Column("validation_id", sa.String(36), nullable=True),
        sa.Column("hostname", sa.String(255), nullable=False),
        sa.Column("os", sa.String(255), nullable=False),
        sa.Column("kernel", sa.String(255), nullable=False),
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("boot_id", sa.String(64), nullable=False),
        sa.Column("cohort", sa.String(200), nullable=False),
        sa.Column("cpu_count", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Integer(), server_default="0", nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("rack", sa.String(200), nullable=False),
        sa.Column("switches", sa.JSON(), server_default="[]", nullable=False),
        sa.Column("booted_at", UnixTime(), nullable=True),
        sa.Column("stopped_at", UnixTime(), nullable=True),
        sa.Column("started_at", UnixTime(), nullable=True),
        sa.Column("first_seen_at", UnixTime(), nullable=False),
        sa.Column("last_seen_at", UnixTime(), nullable=True),
        sa.CheckConstraint("owner IN ('system', 'operator', 'external')", name=op.f("ck_nodes_owner")),
        sa.CheckConstraint(
            "state IN ('unknown', 'healthy', 'suspect', 'draining', 'quarantined', 'validating')",
            name=op.f("ck_nodes_state"),
        ),
    )
    op.create_index("ix_nodes_cohort", "nodes", ["cohort"])
    op.create_index("ix_nodes_last_seen_at", "nodes", ["last_seen_at"])
    op.create_index("ix_nodes_rack", "nodes", ["rack"])
    op.create_index("ix_nodes_state_name", "nodes", ["state", "name"])


def downgrade() -> None:
    for table in (
        "nodes", "node_verdicts", "localizations", "jobs", "incidents", "idempotency_keys", "events", "dcgm_targets",
        "criteria", "changes", "catalogs", "migration_requests",
    ):
        op.drop_table(table)
