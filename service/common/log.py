"""Log lines: readable in a terminal, one JSON object each where machines read them. Everything goes to stderr."""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

import structlog

_QUIET: Final = {
    "alembic": logging.WARNING,
    "uvicorn.error": logging.WARNING,
    "celery.beat": logging.WARNING,
    "celery.worker": logging.WARNING,
    "celery.app.trace": logging.WARNING,
    "kombu": logging.WARNING,
    "kombu.connection": logging.ERROR,  # warns that memory:// has no host name
}
"""What these say below that level tells an operator nothing."""


def configure(level: str, form: str) -> None:
    """Route the standard library's logging through structlog; call once, in a command."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Plain tracebacks: with the local variables of each frame, one error can print megabytes and cost minutes.
    plain = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
    as_json = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    last = as_json if form == "json" else [plain]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name, least in _QUIET.items():
        logging.getLogger(name).setLevel(max(least, root.level))
