"""What settings are made of: groups, and types of values with their checks."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict


def _split(value: Any) -> Any:
    """A variable and an option hold a list as one text, separated by commas; a file holds an array."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _check_networks(networks: tuple[str, ...]) -> tuple[str, ...]:
    for network in networks:
        ip_network(network)
    return networks


def _check_address(address: str) -> str:
    if address and not address.startswith("/") and "://" not in address:
        raise ValueError("must be an absolute path or an address such as s3://BUCKET/PREFIX")
    return address


def _check_receiver(url: str) -> str:
    if url and not url.startswith(("http://", "https://")):
        raise ValueError("must be a URL such as https://prometheus.example/api/v1/write")
    return url


Address = Annotated[str, AfterValidator(_check_address)]
ReceiverUrl = Annotated[str, AfterValidator(_check_receiver)]
TextList = Annotated[tuple[str, ...], BeforeValidator(_split)]
NetworkList = Annotated[TextList, AfterValidator(_check_networks)]


class SettingsGroup(BaseModel):
    """Settings under one heading; the docstring of each describes it to users."""

    model_config = ConfigDict(
        extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, use_attribute_docstrings=True
    )
