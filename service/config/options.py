"""Options of commands that are settings, and the settings that follow from them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from mainstay.probes.command_options import fail

if TYPE_CHECKING:  # commands import what they need when they run
    from mainstay.service.settings import Settings


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigOptions:
    """Where the settings file is."""

    config: Path | None = None
    """Read this settings file (TOML); also MAINSTAY_CONFIG. See 'mainstay config'."""
    data_dir: Path | None = None
    """Use the data directory of the service."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseOptions(ConfigOptions):
    """Settings as options: ``mainstay.service.config.load`` lists the other sources."""

    data_dir: Path | None = None
    """Keep database, blocks, and the admin token in this directory."""
    database_url: str | None = None
    """Use the database sqlite:///FILE or postgresql://…."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions(DatabaseOptions):
    """What a worker needs as well."""

    broker_url: str | None = None
    """Use the broker memory:// or redis://…."""
    log_format: Literal["console", "json"] | None = None
    """Set the format of log lines."""
    log_level: Literal["debug", "info", "warning", "error"] | None = None
    """Set the lowest severity of log lines."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions(WorkerOptions):
    """What the control plane needs as well."""

    host: str | None = None
    """Listen on this address; the default is loopback."""
    port: int | None = None
    """Listen on this port (8080); 0 takes a free one."""
    role: Literal["all", "gateway"] | None = None
    """Do all work (the default), or, as a gateway, only accept what nodes and jobs send."""
    migrate: bool | None = None
    """Migrate the database schema first (default on SQLite)."""
    tls_certificate: Path | None = None
    """Read the PEM certificate chain from this file."""
    tls_key: Path | None = None
    """Read the PEM private key from this file."""
    tls_client_ca: Path | None = None
    """Require certificates of nodes that an authority in this PEM file signed."""
    insecure_listen: Annotated[bool | None, Parameter(negative="")] = None
    """Listen beyond loopback without TLS (a proxy provides it)."""


def settings_of(options: DatabaseOptions, command: str) -> Settings:
    """Load the settings; invalid ones end the command with one line."""
    from mainstay.service.config.load import InvalidSettingsError, load  # noqa: PLC0415 - help needs no settings

    given = {name: value for name, value in asdict(options).items() if value is not None}
    file = given.pop("config", None)
    if "broker_url" in given:
        given["celery"] = {"broker_url": given.pop("broker_url")}
    if "role" in given:
        given["cluster"] = {"role": given.pop("role")}
    try:
        return load(given, file).settings
    except InvalidSettingsError as error:
        fail(command, str(error))
