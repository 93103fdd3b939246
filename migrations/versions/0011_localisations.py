"""Localisations: which of several nodes, or what between them, is slow.

Revision ID: 0011
Revises: 0010
Created: 2026-11-21
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from service.kit.db import UnixTime

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_OPEN = sa.text("state IN ('queued', 'taken')")


def upgrade() -> None:
    op.create_table(
        "localisations",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("nodes", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("partners", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("addresses", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("verdict", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.Column("finished_at", UnixTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_localisations"),
        sa.CheckConstraint("state IN ('running', 'done', 'cancelled')", name="ck_localisations_state"),
    )
    op.create_index("ix_localisations_created_at_id", "localisations", ["created_at", "id"])
    op.create_table(
        "localisation_orders",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("localisation_id", sa.String(36), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("node", sa.String(128), nullable=False),
        sa.Column("peer", sa.String(128), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("order", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.Column("taken_at", UnixTime(), nullable=True),
        sa.Column("deadline_at", UnixTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["localisation_id"], ["localisations.id"], name="fk_localisation_orders_localisation_id_localisations",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_localisation_orders"),
        sa.UniqueConstraint(
            "localisation_id", "round", "position", "role",
            name="uq_localisation_orders_localisation_id_round_position_role",
        ),
        sa.CheckConstraint(
            "state IN ('queued', 'taken', 'done', 'expired')", name="ck_localisation_orders_state"
        ),
    )  # fmt: skip
    op.create_index(
        "ix_localisation_orders_open",
        "localisation_orders",
        ["node", "deadline_at"],
        sqlite_where=_OPEN,
        postgresql_where=_OPEN,
    )


def downgrade() -> None:
    op.drop_table("localisation_orders")
    op.drop_table("localisations")
