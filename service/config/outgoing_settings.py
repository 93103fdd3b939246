"""Settings of what the service sends to other programs."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from mainstay.service.config.setting_types import ReceiverUrl, SettingsGroup


class RemoteWriteSettings(SettingsGroup):
    """Series of single devices, sent to a Prometheus remote-write receiver."""

    url: ReceiverUrl = Field(default="", repr=False)
    """URL of the receiver, such as https://prometheus.example/api/v1/write. Empty: nothing is sent."""
    interval_seconds: int = Field(default=15, ge=5, le=300)
    """Interval between two samples of a series, in seconds."""
    token_file: Path | None = None
    """File with the bearer token for the receiver."""
    basic_auth_file: Path | None = None
    """File with USER:PASSWORD for the receiver, instead of a token."""
    ca_file: Path | None = None
    """PEM file of authorities to trust for https, instead of those of the system."""


class NotificationSettings(SettingsGroup):
    """Messages about incidents. Routes and receivers are not settings: `mainstay notifications push` stores them."""

    dashboard_url: ReceiverUrl = ""
    """URL of the dashboard in messages, such as https://mainstay.example. Empty: the address of this process."""
    secrets_dir: Path | None = None
    """Directory of the secrets that receivers name, one file each. Not set: the directory secrets in the data
    directory."""
    timeout_seconds: float = Field(default=10.0, gt=0, le=60)
    """Time after which an attempt to send a message fails, in seconds."""
    give_up_hours: float = Field(default=24.0, gt=0)
    """Time for which a message is sent again while its receiver does not accept it, in hours."""
    acknowledge_hours: float = Field(default=72.0, gt=0, le=24 * 30)
    """Time for which the link in a message acknowledges its incidents, in hours."""
    ca_file: Path | None = None
    """PEM file of authorities to trust for receivers, together with those of the system."""
