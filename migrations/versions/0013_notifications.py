"""Notifications, silences, and who works on an incident.

Revision ID: 0013
Revises: 0012
Created: 2026-11-29
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from mainstay.service.common.db import UnixTime

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "notification_configs",
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("actor", sa.String(length=200), nullable=False),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.PrimaryKeyConstraint("version", name="pk_notification_configs"),
    )
    op.create_table(
        "notification_cursor",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("transaction", sa.BigInteger(), nullable=False),
        sa.Column("change", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.LargeBinary(length=32), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_notification_cursor"),
    )
    op.create_table(
        "notification_groups",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("route", sa.String(length=128), nullable=False),
        sa.Column("key", sa.String(length=500), nullable=False),
        sa.Column("severity", sa.String(length=16), nullable=False),
        sa.Column("needs_operator", sa.Boolean(), nullable=False),
        sa.Column("receivers", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.Column("send_at", UnixTime(), nullable=True),
        sa.Column("repeat_at", UnixTime(), nullable=True),
        sa.Column("escalate_at", UnixTime(), nullable=True),
        sa.Column("sent_at", UnixTime(), nullable=True),
        sa.Column("acknowledged_at", UnixTime(), nullable=True),
        sa.Column("resolved_at", UnixTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_notification_groups"),
    )
    op.create_index("ix_notification_groups_resolved_at", "notification_groups", ["resolved_at"], unique=False)
    op.create_index(
        "uq_notification_groups_open",
        "notification_groups",
        ["route", "key"],
        unique=True,
        sqlite_where=sa.text("resolved_at IS NULL"),
        postgresql_where=sa.text("resolved_at IS NULL"),
    )
    op.create_table(
        "silences",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("actor", sa.String(length=200), nullable=False),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.Column("starts_at", UnixTime(), nullable=False),
        sa.Column("ends_at", UnixTime(), nullable=False),
        sa.Column("ended_by", sa.String(length=200), nullable=True),
        sa.Column("hours", sa.String(length=32), nullable=True),
        sa.Column("timezone", sa.String(length=64), nullable=False),
        sa.Column("detectors", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("kinds", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("nodes", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("racks", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("switches", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("cohorts", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("jobs", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_silences"),
    )
    op.create_index("ix_silences_created_at_id", "silences", ["created_at", "id"], unique=False)
    op.create_index("ix_silences_ends_at_id", "silences", ["ends_at", "id"], unique=False)
    op.create_table(
        "notification_group_incidents",
        sa.Column("group_id", sa.String(length=36), nullable=False),
        sa.Column("incident_id", sa.String(length=36), nullable=False),
        sa.ForeignKeyConstraint(
            ["group_id"],
            ["notification_groups.id"],
            name="fk_notification_group_incidents_group_id_notification_groups",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["incident_id"],
            ["incidents.id"],
            name="fk_notification_group_incidents_incident_id_incidents",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("group_id", "incident_id", name="pk_notification_group_incidents"),
    )
    op.create_index(
        "ix_notification_group_incidents_incident_id", "notification_group_incidents", ["incident_id"], unique=False
    )
    op.create_table(
        "notifications",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("group_id", sa.String(length=36), nullable=True),
        sa.Column("incident_id", sa.String(length=36), nullable=True),
        sa.Column("receiver", sa.String(length=128), nullable=False),
        sa.Column("event", sa.String(length=16), nullable=False),
        sa.Column("title", sa.String(length=400), nullable=False),
        sa.Column("message", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.Column("due_at", UnixTime(), nullable=True),
        sa.Column("ended_at", UnixTime(), nullable=True),
        sa.CheckConstraint("state IN ('pending', 'delivered', 'failed')", name="ck_notifications_state"),
        sa.ForeignKeyConstraint(
            ["group_id"],
            ["notification_groups.id"],
            name="fk_notifications_group_id_notification_groups",
            ondelete="SET NULL",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_notifications"),
    )
    op.create_index("ix_notifications_created_at_id", "notifications", ["created_at", "id"], unique=False)
    op.create_index(
        "ix_notifications_due",
        "notifications",
        ["due_at"],
        unique=False,
        sqlite_where=sa.text("due_at IS NOT NULL"),
        postgresql_where=sa.text("due_at IS NOT NULL"),
    )
    op.create_index(
        "ix_notifications_incident_id_created_at", "notifications", ["incident_id", "created_at"], unique=False
    )
    op.create_index("ix_notifications_receiver_created_at", "notifications", ["receiver", "created_at"], unique=False)
    op.add_column("incidents", sa.Column("acknowledged_at", UnixTime(), nullable=True))
    op.add_column("incidents", sa.Column("acknowledged_by", sa.String(length=200), nullable=True))
    op.add_column("incidents", sa.Column("assignee", sa.String(length=200), nullable=True))


def downgrade() -> None:
    for column in ("assignee", "acknowledged_by", "acknowledged_at"):
        op.drop_column("incidents", column)
    for table in (
        "silences",
        "notifications",
        "notification_group_incidents",
        "notification_groups",
        "notification_cursor",
        "notification_configs",
    ):
        op.drop_table(table)
