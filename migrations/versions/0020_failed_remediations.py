"""A remediation that was begun and did not come about has failed: it was called superseded.

Revision ID: 0020
Revises: 0019
Created: 2026-11-23
"""

from __future__ import annotations

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_BEFORE = ("proposed", "held", "accepted", "dismissed", "done", "superseded")


def upgrade() -> None:
    _allow(*_BEFORE, "failed")


def downgrade() -> None:
    op.execute("UPDATE remediations SET state = 'superseded' WHERE state = 'failed'")
    _allow(*_BEFORE)


def _allow(*states: str) -> None:
    name, condition = op.f("ck_remediations_state"), f"state IN ({', '.join(map(repr, states))})"
    if op.get_bind().dialect.name == "sqlite":  # it is copied, and checks are left out of a copy
        with op.batch_alter_table("remediations", recreate="always") as table:
            table.create_check_constraint(name, condition)
        return
    op.drop_constraint(name, "remediations", type_="check")
    op.create_check_constraint(name, "remediations", condition)
