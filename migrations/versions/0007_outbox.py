"""Changes in the order of transactions.

Revision ID: 0007
Revises: 0006
Created: 2026-11-26
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Changes from before all get this transaction's number: among themselves their ids are in the order of commits.
    number = "0" if op.get_bind().dialect.name == "sqlite" else "(pg_current_xact_id()::text::bigint)"
    op.add_column("changes", sa.Column("transaction", sa.BigInteger(), server_default=sa.text(number), nullable=False))
    op.create_index("ix_changes_transaction_id", "changes", ["transaction", "id"])


def downgrade() -> None:
    op.drop_index("ix_changes_transaction_id", "changes")
    op.drop_column("changes", "transaction")
