"""An exporter for each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.service.sources.exporter import Exporter, old_text


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    made = Exporter(old_text())
    yield made
    made.close()
