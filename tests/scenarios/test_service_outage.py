"""The control plane is not on the critical path: it dies, a rank dies, training continues, and nothing is lost."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from bench.service_outage import play
from tests.fork_server.processes import Warm, warm_stack


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(240)
@pytest.mark.xdist_group("control")
def test_a_rank_is_lost_while_the_service_is_away(warm: Warm, warm_service: Warm, tmp_path: Path) -> None:
    seen = play(tmp_path, away=5.0, make=partial(warm_stack, warm_service, warm), step_ms=60)
    assert seen.steps_meanwhile > 0
    assert seen.missing == 0
    assert seen.double == 0
    assert seen.frames > 4
    assert abs(seen.incident_time_error_s) < 1.0
