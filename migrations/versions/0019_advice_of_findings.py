"""Advice names where to go, the finding that it rests on, and the remediation that gave it.

Revision ID: 0019
Revises: 0018
Created: 2026-11-22
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("advice", sa.Column("target", sa.String(128), nullable=True))
    op.add_column("advice", sa.Column("finding", sa.String(36), nullable=True))
    op.add_column("advice", sa.Column("remediation", sa.String(36), nullable=True))
    op.create_index(op.f("ix_advice_remediation"), "advice", ["remediation"])


def downgrade() -> None:
    op.drop_index(op.f("ix_advice_remediation"), "advice")
    op.drop_column("advice", "remediation")
    op.drop_column("advice", "finding")
    op.drop_column("advice", "target")
