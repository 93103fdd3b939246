"""The tables of the first release, second part.

Revision ID: 0002
Revises: 0001
Created: 2026-11-23
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from mainstay.service.common.db import UnixTime, partial

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "policy_shadow",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("time", UnixTime(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("event_id", sa.String(36), nullable=False),
        sa.Column("node", sa.String(128), nullable=False),
        sa.Column("device", sa.String(128), nullable=True),
        sa.Column("code", sa.Integer(), nullable=False),
        sa.Column("live", sa.Text(), nullable=False),
        sa.Column("shadow", sa.Text(), nullable=False),
    )
    op.create_index("ix_policy_shadow_time_id", "policy_shadow", ["time", "id"])
    op.create_table(
        "policy_versions",
        sa.Column("version", sa.Integer(), autoincrement=True, primary_key=True),
        sa.Column("mode", sa.String(16), nullable=False),
        sa.Column("overrides", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("changed_at", UnixTime(), nullable=False),
        sa.Column("changed_by", sa.String(200), nullable=False),
        sa.Column("changed_reason", sa.Text(), nullable=False),
        sa.CheckConstraint("mode IN ('draft', 'shadow', 'active', 'retired')", name=op.f("ck_policy_versions_mode")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_policy_versions_active", "policy_versions", ["mode"], unique=True, **partial("mode = 'active'"))
    op.create_index("ix_policy_versions_shadow", "policy_versions", ["mode"], unique=True, **partial("mode = 'shadow'"))
    op.create_table(
        "recoveries",
        sa.Column("id", sa.String(128), primary_key=True),
        sa.Column("job", sa.String(128), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=True),
        sa.Column("failed_at", UnixTime(), nullable=False),
        sa.Column("planned_at", UnixTime(), nullable=True),
        sa.Column("recovered_at", UnixTime(), nullable=True),
        sa.Column("verified_at", UnixTime(), nullable=True),
        sa.Column("failed_ranks", sa.JSON(), nullable=False),
        sa.Column("restore_strategy", sa.String(32), nullable=True),
        sa.Column("steps_lost", sa.Integer(), nullable=True),
        sa.Column("planned_seconds", sa.Double(), nullable=True),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("parts", sa.JSON(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=True),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("plan_id", sa.String(128), nullable=True),
        sa.Column("incident_id", sa.String(36), nullable=True),
        sa.Column("strategy", sa.String(32), nullable=True),
        sa.Column("predicted_seconds", sa.Double(), nullable=True),
        sa.Column("excess_cost_seconds", sa.Double(), nullable=True),
        sa.Column("decision", sa.JSON(), nullable=True),
        sa.CheckConstraint(
            "outcome IN ('recovering', 'recovered', 'verified', 'failed')", name=op.f("ck_recoveries_outcome")
        ),
    )
    op.create_index("ix_recoveries_incident_id", "recoveries", ["incident_id"])
    op.create_index("ix_recoveries_job_failed_at", "recoveries", ["job", "failed_at"])
    op.create_index("ix_recoveries_plan_id", "recoveries", ["plan_id"])
    op.create_table(
        "reported_health",
        sa.Column("source", sa.String(32), primary_key=True),
        sa.Column("node", sa.String(128), primary_key=True),
        sa.Column("check_name", sa.String(200), primary_key=True),
        sa.Column("health", sa.String(64), nullable=False),
        sa.Column("time", UnixTime(), nullable=False),
    )
    op.create_table(
        "selections",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.Column("trigger", sa.String(16), nullable=False),
        sa.Column("suite", sa.String(200), nullable=False),
        sa.Column("nodes", sa.JSON(), nullable=False),
        sa.Column("run_on", sa.JSON(), nullable=False),
        sa.Column("job_hours", sa.Double(), nullable=False),
        sa.Column("target_risk", sa.Double(), nullable=False),
        sa.Column("worth_node_hours", sa.Double(), nullable=True),
        sa.Column("remeasure", sa.Integer(), server_default="0", nullable=False),
        sa.Column("record", sa.JSON(), nullable=False),
        sa.CheckConstraint(
            "trigger IN ('job', 'added', 'repair', 'incident', 'periodic', 'manual')",
            name=op.f("ck_selections_trigger"),
        ),
    )
    op.create_index("ix_selections_created_at_id", "selections", ["created_at", "id"])
    op.create_table(
        "sweeps",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("name", sa.String(200), nullable=False, unique=True),
        sa.Column("suite", sa.String(200), nullable=False),
        sa.Column("schedule", sa.String(200), nullable=True),
        sa.Column("nodes", sa.JSON(), nullable=True),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.Column("next_run_at", UnixTime(), nullable=True),
        sa.Column("last_run_at", UnixTime(), nullable=True),
        sa.Column("cohort", sa.String(200), nullable=True),
        sa.Column("benchmarks", sa.JSON(), nullable=True),
        sa.Column("max_concurrent", sa.Integer(), nullable=True),
        sa.Column("max_per_switch", sa.Integer(), nullable=True),
        sa.Column("retries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("timeout_seconds", sa.Double(), nullable=True),
        sa.Column("remeasure", sa.Integer(), server_default="0", nullable=False),
        sa.Column("version", sa.Integer(), server_default="1", nullable=False),
    )
    op.create_index("ix_sweeps_due", "sweeps", ["next_run_at"], **partial("next_run_at IS NOT NULL"))
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False, unique=True),
        sa.Column("prefix", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("node", sa.String(128), nullable=True),
        sa.Column("job", sa.String(128), nullable=True),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.Column("expires_at", UnixTime(), nullable=True),
        sa.Column("revoked_at", UnixTime(), nullable=True),
        sa.Column("used_at", UnixTime(), nullable=True),
        sa.CheckConstraint("kind IN ('admin', 'user', 'node', 'job', 'join')", name=op.f("ck_tokens_kind")),
    )
    op.create_index("ix_tokens_created_at_id", "tokens", ["created_at", "id"])
    op.create_index("ix_tokens_node", "tokens", ["node"])
    op.create_table(
        "xid_totals",
        sa.Column("gpu", sa.String(300), primary_key=True),
        sa.Column("xid", sa.Integer(), autoincrement=False, primary_key=True),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.Column("first_at", UnixTime(), nullable=False),
        sa.Column("last_at", UnixTime(), nullable=False),
        sa.Column("last_source", sa.String(32), nullable=False),
    )
    op.create_table(
        "actions",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("incident_id", sa.String(36), sa.ForeignKey("incidents.id"), nullable=False),
        sa.Column("recovery", sa.String(128), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("started_at", UnixTime(), nullable=False),
        sa.Column("finished_at", UnixTime(), nullable=True),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.CheckConstraint("state IN ('running', 'done', 'failed')", name=op.f("ck_actions_state")),
    )
    op.create_index("ix_actions_incident_id_started_at", "actions", ["incident_id", "started_at"])
    op.create_table(
        "device_locations",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("hardware", sa.String(300), nullable=False),
        sa.Column("node", sa.String(128), sa.ForeignKey("nodes.name", ondelete="CASCADE"), nullable=False),
        sa.Column("device", sa.String(128), nullable=False),
        sa.Column("first_seen_at", UnixTime(), nullable=False),
        sa.Column("last_seen_at", UnixTime(), nullable=False),
        sa.Column("left_at", UnixTime(), nullable=True),
    )
    op.create_index("ix_device_locations_hardware_first_seen_at", "device_locations", ["hardware", "first_seen_at"])
    op.create_index("ix_device_locations_node_left_at", "device_locations", ["node", "left_at"])
    op.create_table(
        "devices",
        sa.Column("node", sa.String(128), sa.ForeignKey("nodes.name", ondelete="CASCADE"), primary_key=True),
        sa.Column("id", sa.String(128), primary_key=True),
        sa.Column("hardware", sa.String(300), nullable=True),
        sa.Column("previous_node", sa.String(128), nullable=True),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("serial", sa.String(128), nullable=True),
        sa.Column("uuid", sa.String(128), nullable=True),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("present", sa.Boolean(), nullable=False),
        sa.Column("first_seen_at", UnixTime(), nullable=False),
        sa.Column("last_seen_at", UnixTime(), nullable=False),
    )
    op.create_index("ix_devices_hardware", "devices", ["hardware"])
    op.create_table(
        "findings",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("key", sa.String(600), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("node", sa.String(128), nullable=True),
        sa.Column("device", sa.String(128), nullable=True),
        sa.Column("job", sa.String(128), nullable=True),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.Column("peer", sa.Integer(), nullable=True),
        sa.Column("time", UnixTime(), nullable=False),
        sa.Column("severity", sa.String(16), nullable=False),
        sa.Column("detector", sa.String(64), nullable=False),
        sa.Column("confidence", sa.Double(), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("recommended_action", sa.String(16), nullable=False),
        sa.Column("cause", sa.String(32), nullable=True),
        sa.Column("cleared_at", UnixTime(), nullable=True),
        sa.Column("event_id", sa.String(36), nullable=True),
        sa.Column("incident_id", sa.String(36), sa.ForeignKey("incidents.id"), nullable=True),
    )
    op.create_index("ix_findings_active_time", "findings", ["time", "id"], **partial("active", sqlite="active = 1"))
    op.create_index("ix_findings_incident_id", "findings", ["incident_id"])
    op.create_index("ix_findings_job_time", "findings", ["job", "time"])
    op.create_index("ix_findings_node_time", "findings", ["node", "time"])
    op.create_index("ix_findings_time_id", "findings", ["time", "id"])
    op.create_index("uq_findings_active_key", "findings", ["key"], unique=True, **partial("active"))


def downgrade() -> None:
    for table in (
        "findings", "devices", "device_locations", "actions", "xid_totals", "tokens", "sweeps", "selections",
        "reported_health", "recoveries", "policy_versions", "policy_shadow",
    ):
        op.drop_table(table)
