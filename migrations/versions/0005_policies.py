"""Versions of the XID policy, and what a shadow version would have said.

Revision ID: 0005
Revises: 0004
Created: 2026-11-21
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from service.kit.db import UnixTime

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "policy_versions",
        sa.Column("version", sa.Integer(), autoincrement=True, nullable=False),
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
        sa.PrimaryKeyConstraint("version", name=op.f("pk_policy_versions")),
        sqlite_autoincrement=True,
    )
    for mode in ("active", "shadow"):
        one = sa.text(f"mode = '{mode}'")
        op.create_index(
            f"ix_policy_versions_{mode}", "policy_versions", ["mode"], unique=True, sqlite_where=one,
            postgresql_where=one,
        )  # fmt: skip
    op.create_table(
        "policy_shadow",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("time", UnixTime(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("event_id", sa.String(36), nullable=False),
        sa.Column("node", sa.String(128), nullable=False),
        sa.Column("device", sa.String(128), nullable=True),
        sa.Column("code", sa.Integer(), nullable=False),
        sa.Column("live", sa.Text(), nullable=False),
        sa.Column("shadow", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_policy_shadow")),
    )
    op.create_index(op.f("ix_policy_shadow_time_id"), "policy_shadow", ["time", "id"])


def downgrade() -> None:
    op.drop_table("policy_shadow")
    op.drop_table("policy_versions")
