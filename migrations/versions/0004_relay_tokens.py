"""Tokens of relays, bound to racks.

Revision ID: 0004
Revises: 0003
Created: 2026-11-24
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from alembic.operations import BatchOperations

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

BEFORE = ("admin", "user", "node", "job", "join")


def upgrade() -> None:
    with op.batch_alter_table("tokens") as batch:
        batch.add_column(sa.Column("racks", sa.JSON(), nullable=True))
        _replace_kinds(batch, (*BEFORE, "relay"))


def downgrade() -> None:
    op.execute("DELETE FROM tokens WHERE kind = 'relay'")
    with op.batch_alter_table("tokens") as batch:
        batch.drop_column("racks")
        _replace_kinds(batch, BEFORE)


def _replace_kinds(batch: BatchOperations, kinds: tuple[str, ...]) -> None:
    if op.get_bind().dialect.name != "sqlite":  # there the table is copied, and the copy has no check
        batch.drop_constraint(op.f("ck_tokens_kind"), type_="check")
    batch.create_check_constraint(op.f("ck_tokens_kind"), f"kind IN {kinds}")
