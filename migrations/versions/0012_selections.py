"""Plans of the Selector, each with its reasons.

Revision ID: 0012
Revises: 0011
Created: 2026-11-21
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from service.kit.db import UnixTime

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "selections",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.Column("trigger", sa.String(16), nullable=False),
        sa.Column("suite", sa.String(200), nullable=False),
        sa.Column("nodes", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("run_on", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("job_hours", sa.Double(), nullable=False),
        sa.Column("target_risk", sa.Double(), nullable=False),
        sa.Column("worth_node_hours", sa.Double(), nullable=True),
        sa.Column("record", sa.JSON(none_as_null=True), nullable=False),
        sa.CheckConstraint(
            "trigger IN ('job', 'added', 'repair', 'incident', 'periodic', 'manual')", name=op.f("ck_selections_trigger")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_selections")),
    )
    op.create_index(op.f("ix_selections_created_at_id"), "selections", ["created_at", "id"])


def downgrade() -> None:
    op.drop_table("selections")
