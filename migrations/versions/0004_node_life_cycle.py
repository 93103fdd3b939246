"""Who moved a node and why, where its hardware has been, and what the machine proposes to do with it.

Revision ID: 0004
Revises: 0003
Created: 2026-11-21
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from service.kit.db import UnixTime
from service.kit.ids import new_id

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None
_OPEN = sa.text("state IN ('proposed', 'held', 'accepted')")


def upgrade() -> None:
    with op.batch_alter_table("nodes") as table:
        table.add_column(sa.Column("state_version", sa.Integer(), nullable=False, server_default="0"))
        table.add_column(sa.Column("state_since", UnixTime(), nullable=True))
        table.add_column(sa.Column("owner", sa.String(16), nullable=False, server_default="machine"))
        table.add_column(sa.Column("actor", sa.String(200), nullable=False, server_default="mainstay"))
        table.add_column(sa.Column("drain_deadline_at", UnixTime(), nullable=True))
        table.add_column(sa.Column("validation_id", sa.String(36), nullable=True))
        table.create_check_constraint("owner", "owner IN ('machine', 'person', 'outside')")
    _create_transitions()
    _create_stays()
    _create_remediations()


def _create_transitions() -> None:
    op.create_table(
        "node_transitions",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("node", sa.String(128), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("time", UnixTime(), nullable=False),
        sa.Column("trigger", sa.String(16), nullable=False),
        sa.Column("from_state", sa.String(16), nullable=False),
        sa.Column("to_state", sa.String(16), nullable=False),
        sa.Column("owner", sa.String(16), nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("reason", sa.String(500), nullable=False),
        sa.Column("incident", sa.String(36), nullable=True),
        sa.ForeignKeyConstraint(["node"], ["nodes.name"], ondelete="CASCADE", name="fk_node_transitions_node_nodes"),
        sa.PrimaryKeyConstraint("id", name="pk_node_transitions"),
        sa.UniqueConstraint("node", "version", name="uq_node_transitions_node_version"),
    )
    op.create_index("ix_node_transitions_node_time_id", "node_transitions", ["node", "time", "id"])
    op.create_index("ix_node_transitions_time", "node_transitions", ["time"])


def _create_stays() -> None:
    stays = op.create_table(
        "device_stays",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("hardware", sa.String(300), nullable=False),
        sa.Column("node", sa.String(128), nullable=False),
        sa.Column("device", sa.String(128), nullable=False),
        sa.Column("first_seen_at", UnixTime(), nullable=False),
        sa.Column("last_seen_at", UnixTime(), nullable=False),
        sa.Column("left_at", UnixTime(), nullable=True),
        sa.ForeignKeyConstraint(["node"], ["nodes.name"], ondelete="CASCADE", name="fk_device_stays_node_nodes"),
        sa.PrimaryKeyConstraint("id", name="pk_device_stays"),
    )
    op.create_index("ix_device_stays_hardware_first_seen_at", "device_stays", ["hardware", "first_seen_at"])
    op.create_index("ix_device_stays_node_left_at", "device_stays", ["node", "left_at"])
    devices = sa.table(
        "devices", sa.column("hardware"), sa.column("node"), sa.column("id"), sa.column("present"),
        sa.column("first_seen_at", UnixTime()), sa.column("last_seen_at", UnixTime()),
    )  # fmt: skip
    known = op.get_bind().execute(sa.select(devices).where(devices.c.hardware.is_not(None))).all()
    rows = [
        {
            "id": new_id(), "hardware": row.hardware, "node": row.node, "device": row.id,
            "first_seen_at": row.first_seen_at, "last_seen_at": row.last_seen_at,
            "left_at": None if row.present else row.last_seen_at,
        }
        for row in known
    ]  # fmt: skip
    if rows:
        op.bulk_insert(stays, rows)


def _create_remediations() -> None:
    op.create_table(
        "remediations",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("incident_id", sa.String(36), nullable=False),
        sa.Column("node", sa.String(128), nullable=False),
        sa.Column("device", sa.String(128), nullable=True),
        sa.Column("hardware", sa.String(300), nullable=True),
        sa.Column("remedy", sa.String(16), nullable=False),
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
            "state IN ('proposed', 'held', 'accepted', 'dismissed', 'done', 'superseded')", name="state"
        ),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name="fk_remediations_incident_id_incidents"),
        sa.PrimaryKeyConstraint("id", name="pk_remediations"),
    )
    op.create_index("ix_remediations_created_at_id", "remediations", ["created_at", "id"])
    op.create_index("ix_remediations_node_created_at", "remediations", ["node", "created_at"])
    op.create_index("ix_remediations_hardware_ended_at", "remediations", ["hardware", "ended_at"])
    op.create_index("ix_remediations_incident_id_node", "remediations", ["incident_id", "node"])
    op.create_index(
        "uq_remediations_open", "remediations", ["incident_id", "node"], unique=True, sqlite_where=_OPEN,
        postgresql_where=_OPEN,
    )  # fmt: skip


def downgrade() -> None:
    op.drop_table("remediations")
    op.drop_table("device_stays")
    op.drop_table("node_transitions")
    with op.batch_alter_table("nodes") as table:
        table.drop_constraint("owner", type_="check")
        for column in ("validation_id", "drain_deadline_at", "actor", "owner", "state_since", "state_version"):
            table.drop_column(column)
