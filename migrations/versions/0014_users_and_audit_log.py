"""Users, teams, and the audit log.

Revision ID: 0014
Revises: 0013
Created: 2026-11-29
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from mainstay.service.common.db import UnixTime

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_POSTGRESQL = (
    """
CREATE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'the audit log is append-only'; END $$
""",
    """
CREATE TRIGGER audit_log_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log
FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change()
""",
)
_SQLITE = """
CREATE TRIGGER audit_log_no_{word} BEFORE {action} ON audit_log
BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END
"""


def upgrade() -> None:
    op.create_table('audit_log',
    sa.Column('id', sa.String(length=36), nullable=False),
    sa.Column('at', UnixTime(), nullable=False),
    sa.Column('actor', sa.String(length=200), nullable=False),
    sa.Column('actor_kind', sa.String(length=8), nullable=False),
    sa.Column('actor_id', sa.String(length=36), nullable=True),
    sa.Column('action', sa.String(length=64), nullable=False),
    sa.Column('target', sa.String(length=600), nullable=False),
    sa.Column('detail', sa.JSON(none_as_null=True), nullable=False),
    sa.Column('address', sa.String(length=64), nullable=True),
    sa.CheckConstraint("actor_kind IN ('user', 'token', 'rule', 'link', 'command')", name='ck_audit_log_actor_kind'),
    sa.PrimaryKeyConstraint('id', name='pk_audit_log')
    )
    op.create_index('ix_audit_log_actor_at_id', 'audit_log', ['actor', 'at', 'id'], unique=False)
    op.create_index('ix_audit_log_at_id', 'audit_log', ['at', 'id'], unique=False)
    op.create_table('teams',
    sa.Column('name', sa.String(length=128), nullable=False),
    sa.Column('jobs', sa.JSON(none_as_null=True), nullable=False),
    sa.Column('groups', sa.JSON(none_as_null=True), nullable=False),
    sa.Column('changed_at', UnixTime(), nullable=False),
    sa.PrimaryKeyConstraint('name', name='pk_teams')
    )
    op.create_table('users',
    sa.Column('id', sa.String(length=36), nullable=False),
    sa.Column('name', sa.String(length=128), nullable=False),
    sa.Column('display_name', sa.String(length=200), nullable=False),
    sa.Column('role', sa.String(length=16), nullable=True),
    sa.Column('team_role', sa.String(length=16), nullable=True),
    sa.Column('teams', sa.JSON(none_as_null=True), nullable=False),
    sa.Column('password', sa.String(length=200), nullable=True),
    sa.Column('issuer', sa.String(length=500), nullable=True),
    sa.Column('subject', sa.String(length=255), nullable=True),
    sa.Column('created_at', UnixTime(), nullable=False),
    sa.Column('changed_at', UnixTime(), nullable=False),
    sa.Column('disabled_at', UnixTime(), nullable=True),
    sa.Column('signed_in_at', UnixTime(), nullable=True),
    sa.PrimaryKeyConstraint('id', name='pk_users'),
    sa.UniqueConstraint('issuer', 'subject', name='uq_users_issuer_subject'),
    sa.UniqueConstraint('name', name='uq_users_name')
    )
    op.create_index('ix_users_changed_at', 'users', ['changed_at'], unique=False)
    op.add_column('tokens', sa.Column('user_id', sa.String(length=36), nullable=True))
    op.add_column('tokens', sa.Column('team', sa.String(length=128), nullable=True))
    op.add_column('tokens', sa.Column('sign_in', sa.String(length=16), nullable=True))
    op.add_column('tokens', sa.Column('address', sa.String(length=64), nullable=True))
    op.add_column('tokens', sa.Column('last_used_at', UnixTime(), nullable=True))
    op.create_index('ix_tokens_user_id', 'tokens', ['user_id'], unique=False)
    if op.get_bind().dialect.name == "postgresql":
        for statement in _POSTGRESQL:
            op.execute(statement)
        return
    for action in ("UPDATE", "DELETE"):
        op.execute(_SQLITE.format(action=action, word=action.lower()))


def downgrade() -> None:
    for column in ("last_used_at", "address", "sign_in", "team"):
        op.drop_column("tokens", column)
    op.drop_index("ix_tokens_user_id", "tokens")
    op.drop_column("tokens", "user_id")
    for table in ("users", "teams", "audit_log"):
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION refuse_audit_change()")
