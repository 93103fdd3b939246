"""Node health as whole stories: telemetry and events in, incidents and proposals out, with the clock moved by hand.

Faults that take hours to show are played by ``bench.health`` only, and their detectors' tests play them faster.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.health.faults import FAULTS, Fault
from tests.scenarios.health.quiet import QUIET, Quiet
from tests.scenarios.health.stage import CALM_PACE_S, stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SOON_S = 600.0


@pytest.mark.parametrize("story", QUIET, ids=lambda story: story.name)
def test_nobody_cries_wolf(story: Quiet, tmp_path: Path) -> None:
    with stage(tmp_path, **story.stage) as played:
        story.play(played)
        assert not played.drains(), played.describe()
        assert len(played.incidents()) <= story.incidents, played.describe()


@pytest.mark.parametrize("story", [story for story in FAULTS if story.within <= SOON_S], ids=lambda story: story.name)
def test_the_fault_is_found(story: Fault, tmp_path: Path) -> None:
    with stage(tmp_path, **story.stage) as played:
        onset = story.play(played)
        began = played.now
        assert not [f for f in played.findings() if f.time < began - 1], (
            "something was found before it broke\n" + played.describe()
        )
        took = played.until(lambda: any(f.kind in story.kinds for f in played.findings()), onset.seconds)
        assert took is not None, f"not found\n{played.describe()}"
        assert took <= story.within, f"took {took} s\n{played.describe()}"
        rest = 1 if "node_lost" in story.kinds else CALM_PACE_S  # nothing new happens from here on
        played.run(max(0, onset.seconds - int(took)), pace=rest)
        blamed = {(f.node, f.device) for f in played.findings() if f.severity != "info"}
        nodes = {node for node, _ in onset.culprits}
        allowed = {*onset.culprits, *((node, device) for node in nodes for device in (None, "host"))}
        assert blamed <= allowed, played.describe()
        assert len(played.incidents()) == story.incidents, played.describe()
        if story.evicts is not None:
            assert bool(played.drains()) == story.evicts, played.describe()
