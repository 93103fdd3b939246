"""Validations in part, called off, held back and tried again; sweeps with limits.

Revision ID: 0010
Revises: 0009
Created: 2026-11-21
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from service.kit.db import UnixTime

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_SWEEPS = ("cohort", "benchmarks", "at_once", "per_switch", "retries", "timeout_seconds")
_VALIDATIONS = (
    "benchmarks", "progress", "held", "attempt", "retries", "not_before_at", "timeout_seconds", "cancelled_at",
    "cancel_reason", "cancel_told_at",
)  # fmt: skip


def upgrade() -> None:
    for column in (
        sa.Column("cohort", sa.String(200), nullable=True),
        sa.Column("benchmarks", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("at_once", sa.Integer(), nullable=True),
        sa.Column("per_switch", sa.Integer(), nullable=True),
        sa.Column("retries", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("timeout_seconds", sa.Double(), nullable=True),
    ):
        op.add_column("sweeps", column)
    for column in (
        sa.Column("benchmarks", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("progress", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("held", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("attempt", sa.Integer(), nullable=False, server_default="1"),
        sa.Column("retries", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("not_before_at", UnixTime(), nullable=True),
        sa.Column("timeout_seconds", sa.Double(), nullable=True),
        sa.Column("cancelled_at", UnixTime(), nullable=True),
        sa.Column("cancel_reason", sa.Text(), nullable=False, server_default=""),
        sa.Column("cancel_told_at", UnixTime(), nullable=True),
    ):
        op.add_column("validations", column)


def downgrade() -> None:
    for table, names in (("validations", _VALIDATIONS), ("sweeps", _SWEEPS)):
        for name in names:
            op.drop_column(table, name)
