"""The service that tests send bad input to, started once for each file."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.bad_input.input_bench import InputBench


@pytest.fixture(scope="module")
def bench(lasting_service: Any) -> InputBench:
    node = lasting_service.node_client("n1")
    lasting_service.node_client("n2")
    return InputBench(lasting_service, lasting_service.client(), node)
