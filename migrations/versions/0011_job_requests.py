"""Requests of every kind to jobs, and which kinds a job can carry out.

Revision ID: 0011
Revises: 0010
Created: 2026-11-28
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from mainstay.service.common.db import UnixTime

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

SHARED = (
    "id, job, kind, node, rank, reason, actor, state, detail, seconds, steps_lost, created_at, updated_at, target, "
    "finding, remediation"
)
"""Columns of both tables."""


def _table(name: str, *more: sa.Column[object]) -> None:
    states = "state IN ('pending', 'accepted', 'completed', 'rejected', 'failed')"
    op.create_table(
        name,
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("job", sa.String(128), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("node", sa.String(128), nullable=True),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.Column("reason", sa.String(500), nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("detail", sa.String(500), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("steps_lost", sa.BigInteger(), nullable=True),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.Column("updated_at", UnixTime(), nullable=False),
        sa.Column("target", sa.String(128), nullable=True),
        sa.Column("finding", sa.String(36), nullable=True),
        sa.Column("remediation", sa.String(36), nullable=True),
        *more,
        sa.CheckConstraint(states, name=op.f(f"ck_{name}_state")),
    )
    op.create_index(f"ix_{name}_job_created_at_id", name, ["job", "created_at", "id"])
    op.create_index(f"ix_{name}_remediation", name, ["remediation"])


def upgrade() -> None:
    _table(
        "job_requests",
        sa.Column("dp", sa.Integer(), nullable=False),
        sa.Column("pp", sa.Integer(), nullable=False),
        sa.Column("stages", sa.JSON(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=True),
    )
    op.execute(
        f"INSERT INTO job_requests ({SHARED}, dp, pp, stages) SELECT {SHARED}, 0, 0, '[]' FROM migration_requests"
    )
    op.drop_table("migration_requests")
    op.add_column("jobs", sa.Column("request_obstacles", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "request_obstacles")
    _table("migration_requests")
    op.execute(
        f"INSERT INTO migration_requests ({SHARED}) SELECT {SHARED} FROM job_requests WHERE kind = 'migrate'"
    )
    op.drop_table("job_requests")
