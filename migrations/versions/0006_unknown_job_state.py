"""Jobs in a state that only a newer coordinator knows.

Revision ID: 0006
Revises: 0005
Created: 2026-11-26
"""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

BEFORE = ("running", "recovering", "finished", "failed")


def upgrade() -> None:
    _replace_states((*BEFORE, "unknown"))


def downgrade() -> None:
    op.execute("UPDATE jobs SET state = 'recovering' WHERE state = 'unknown'")  # nothing older is nearer to the truth
    _replace_states(BEFORE)


def _replace_states(states: tuple[str, ...]) -> None:
    with op.batch_alter_table("jobs") as batch:
        if op.get_bind().dialect.name != "sqlite":  # there the table is copied, and the copy has no check
            batch.drop_constraint(op.f("ck_jobs_state"), type_="check")
        batch.create_check_constraint(op.f("ck_jobs_state"), f"state IN {states}")
