"""Vendors, an Alertmanager, an SMTP server, and deliveries to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.service.notifications.receivers.mail_server import MailServer, mail_server
from tests.service.notifications.receivers.samples import Courier
from tests.service.notifications.receivers.vendors import Answer, Received, Vendor


@pytest.fixture
def courier(tmp_path: Path) -> Courier:
    return Courier(tmp_path / "secrets")


@pytest.fixture
def open_vendor() -> Iterator[Callable[[Callable[[Received], Answer]], Vendor]]:
    """Start servers with a rule each; they end with the test."""
    made: list[Vendor] = []

    def start(rule: Callable[[Received], Answer]) -> Vendor:
        made.append(Vendor(rule))
        return made[-1]

    yield start
    for vendor in made:
        vendor.close()


@pytest.fixture(scope="module")
def mail(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[MailServer]:
    with mail_server(tmp_path_factory.mktemp("mail"), free_port) as server:
        yield server
