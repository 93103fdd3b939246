"""The control plane's own tables: tokens, nodes, devices, catalogues, changes, idempotency keys.

Revision ID: 0001
Revises:
Created: 2026-11-20
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from service.kit.db import UnixTime

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("prefix", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("node", sa.String(128), nullable=True),
        sa.Column("job", sa.String(128), nullable=True),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.Column("expires_at", UnixTime(), nullable=True),
        sa.Column("revoked_at", UnixTime(), nullable=True),
        sa.Column("used_at", UnixTime(), nullable=True),
        sa.CheckConstraint("kind IN ('admin', 'user', 'node', 'job', 'join')", name="kind"),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sa.UniqueConstraint("digest", name="uq_tokens_digest"),
    )
    op.create_index("ix_tokens_node", "tokens", ["node"])
    op.create_index("ix_tokens_created_at_id", "tokens", ["created_at", "id"])
    op.create_table(
        "sessions",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("token_id", sa.String(36), nullable=False),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.Column("expires_at", UnixTime(), nullable=False),
        sa.ForeignKeyConstraint(["token_id"], ["tokens.id"], name="fk_sessions_token_id_tokens", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("digest", name="pk_sessions"),
    )
    op.create_index("ix_sessions_token_id", "sessions", ["token_id"])
    op.create_index("ix_sessions_expires_at", "sessions", ["expires_at"])
    op.create_table(
        "nodes",
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("state_reason", sa.String(500), nullable=False),
        sa.Column("hostname", sa.String(255), nullable=False),
        sa.Column("os", sa.String(255), nullable=False),
        sa.Column("kernel", sa.String(255), nullable=False),
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("boot_id", sa.String(64), nullable=False),
        sa.Column("cohort", sa.String(200), nullable=False),
        sa.Column("cpu_count", sa.Integer(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("started_at", UnixTime(), nullable=True),
        sa.Column("first_seen_at", UnixTime(), nullable=False),
        sa.Column("last_seen_at", UnixTime(), nullable=True),
        sa.CheckConstraint(
            "state IN ('unknown', 'healthy', 'suspect', 'draining', 'quarantined', 'validating')", name="state"
        ),
        sa.PrimaryKeyConstraint("name", name="pk_nodes"),
    )
    op.create_index("ix_nodes_state", "nodes", ["state"])
    op.create_index("ix_nodes_cohort", "nodes", ["cohort"])
    op.create_index("ix_nodes_last_seen_at", "nodes", ["last_seen_at"])
    op.create_table(
        "devices",
        sa.Column("node", sa.String(128), nullable=False),
        sa.Column("id", sa.String(128), nullable=False),
        sa.Column("hardware", sa.String(300), nullable=True),
        sa.Column("moved_from", sa.String(128), nullable=True),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("serial", sa.String(128), nullable=True),
        sa.Column("uuid", sa.String(128), nullable=True),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("present", sa.Boolean(), nullable=False),
        sa.Column("first_seen_at", UnixTime(), nullable=False),
        sa.Column("last_seen_at", UnixTime(), nullable=False),
        sa.ForeignKeyConstraint(["node"], ["nodes.name"], name="fk_devices_node_nodes", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("node", "id", name="pk_devices"),
    )
    op.create_index("ix_devices_hardware", "devices", ["hardware"])
    op.create_table(
        "catalogues",
        sa.Column("digest", sa.String(16), nullable=False),
        sa.Column("narrow", sa.JSON(), nullable=False),
        sa.Column("wide", sa.JSON(), nullable=False),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_catalogues"),
    )
    op.create_table(
        "changes",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("topic", sa.String(32), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_changes"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("scope", sa.String(64), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("body", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("scope", name="pk_idempotency_keys"),
    )
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"])


def downgrade() -> None:
    for table in ("idempotency_keys", "changes", "catalogues", "devices", "nodes", "sessions", "tokens"):
        op.drop_table(table)
