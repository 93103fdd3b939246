"""Parts of the settings that decide whom the service trusts, and the types that several groups share."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


def _split(value: Any) -> Any:
    """A variable and an option hold a list as one text, separated by commas; a file holds an array."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _check_networks(networks: tuple[str, ...]) -> tuple[str, ...]:
    for network in networks:
        ip_network(network)
    return networks


TextList = Annotated[tuple[str, ...], BeforeValidator(_split)]
NetworkList = Annotated[TextList, AfterValidator(_check_networks)]


class SettingsGroup(BaseModel):
    """Settings under one heading."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)


class AuthSettings(SettingsGroup):
    """Tokens and sessions."""

    session_hours: float = Field(default=24 * 7, gt=0, description="Lifetime of a browser session, in hours.")
    join_token_hours: float = Field(default=24, gt=0, description="Default lifetime of a join token, in hours.")
    cache_seconds: float = Field(
        default=600.0,
        ge=0,
        description="Time for which a checked token stays valid without a new database query, in seconds.",
    )
    revocation_seconds: float = Field(
        default=1.0,
        gt=0,
        description="Interval at which a process looks for tokens that another process revoked, in seconds.",
    )
    sign_in_code_seconds: float = Field(
        default=600.0, gt=0, le=3600, description="Lifetime of a sign-in link, in seconds. It works once."
    )
    sign_in_failures: int = Field(
        default=10,
        ge=1,
        description="Failed sign-ins from one address that are answered in one minute. Further ones are answered 429.",
    )
    sign_in_failures_total: int = Field(default=200, ge=1, description="The same for all addresses together.")


class SourceSettings(SettingsGroup):
    """Scrapes of other monitors."""

    scrape_seconds: float = Field(default=5.0, gt=0, le=60, description="Longest duration of one scrape, in seconds.")
    max_scrape_bytes: int = Field(
        default=16 * 1024 * 1024,
        ge=1024,
        description="Largest response of an exporter that the service reads, in bytes.",
    )
    scrape_threads: int = Field(default=8, ge=1, le=64, description="Scrapes that run at the same time.")
    ca_file: Path | None = Field(
        default=None,
        description="PEM file of authorities to trust for https targets, together with those of the system.",
    )
    allowed_networks: NetworkList = Field(
        default=(),
        description="Networks such as fd00:12::/32 in which exporters run. Mainstay refuses targets in unique-local, "
        "shared (100.64.0.0/10), and translated (mapped, NAT64) networks that this list lacks, and every link-local or "
        "metadata address.",
    )
