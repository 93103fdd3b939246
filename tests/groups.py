"""Which tests one worker runs together, and which go first.

pytest 9 took away what pytest-xdist's own ``--dist loadgroup`` writes its groups into, so every test went to whichever
worker was free: two trainings at once on two cores, and each fixture of a module or a session made once a worker. Here
a unit of work is a file, or all files that carry the same ``xdist_group`` mark, and the longest unit starts first:
what is left at the end is short (Graham, "Bounds on multiprocessing timing anomalies", 1969). Live trainings are two
units, ``training`` (losses and changes) and ``control`` (starts, ends, what the service makes of a job): as one they
were what everybody waited for, and more than two jobs at once are more than two cores carry.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    import pytest
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

RECORD: Final = "mainstay/unit-seconds"
"""Where pytest's cache keeps how long each unit took here."""
DECLARED: Final = {
    "training": 600.0,
    "control": 440.0,
    "browser": 220.0,
    "tests/recovery/adapters/test_loops.py": 140.0,
    "tests/scenarios/test_health.py": 95.0,
    "tests/service/test_api_contract.py": 75.0,
    "compiled": 65.0,
    "tests/scenarios/test_runs.py": 65.0,
    "tests/service/history/test_history.py": 60.0,
    "tests/scenarios/test_backup.py": 55.0,
    "tests/detectors/statistics/test_outlier.py": 55.0,
    "tests/recovery/test_strategies.py": 50.0,
    "tests/recovery/agent/test_transfer.py": 45.0,
    "tests/service/sources/test_dcgm_targets.py": 45.0,
    "tests/probes/test_daemon.py": 45.0,
    "tests/service/test_server.py": 40.0,
    "tests/scenarios/test_scaled_shape.py": 35.0,
    "tests/detectors/straggler/test_straggler.py": 35.0,
    "tests/detectors/test_conformance.py": 35.0,
    "tests/service/fleet/test_node_list.py": 30.0,
    "tests/detectors/network/test_nic.py": 30.0,
    "tests/probes/test_node_tasks.py": 30.0,
    "tests/service/telemetry/test_relay.py": 30.0,
    "tests/service/check_selection/test_check_selection.py": 25.0,
    "tests/test_docs.py": 25.0,
    "tests/scenarios/test_several_processes.py": 25.0,
    "tests/service/incidents/test_detection_loop.py": 25.0,
    "tests/detectors/host/test_host_checks.py": 20.0,
    "tests/service/validation/test_sweeps.py": 20.0,
    "tests/detectors/gpu/test_device_state.py": 20.0,
    "tests/recovery/agent/test_scrub.py": 20.0,
    "tests/recovery/sdk/test_process_groups.py": 20.0,
    "tests/detectors/gpu/test_error_drift.py": 20.0,
    "tests/recovery/strategies/test_conformance.py": 20.0,
    "tests/service/auth/test_auth.py": 20.0,
    "tests/service/admission/test_admission.py": 20.0,
    "tests/probes/test_nvml_sampler.py": 20.0,
    "tests/detectors/job/test_replay_analysis.py": 20.0,
    "tests/recovery/sdk/test_without_launcher.py": 20.0,
    "tests/detectors/validation/test_criteria_cli.py": 20.0,
    "tests/detectors/selector/test_history.py": 20.0,
    "tests/detectors/gpu/test_nvlink.py": 20.0,
    "tests/scenarios/test_rolling_upgrade.py": 15.0,
    "tests/service/common/test_migrations.py": 15.0,
    "tests/service/telemetry/test_kill.py": 15.0,
    "tests/service/test_connections.py": 15.0,
    "tests/detectors/test_recording.py": 15.0,
    "tests/service/localization/test_pairs.py": 15.0,
    "tests/service/test_tls.py": 15.0,
    "tests/service/notifications/receivers/test_conformance.py": 15.0,
    "tests/probes/benchmarks/test_isolation.py": 15.0,
    "tests/service/fleet/test_bulk_moves.py": 15.0,
    "tests/service/incidents/test_endpoints.py": 15.0,
    "tests/service/auth/test_users.py": 15.0,
    "tests/recovery/simulated/test_random_runs.py": 15.0,
    "tests/detectors/network/test_transfer_delays.py": 15.0,
    "tests/service/notifications/test_planner.py": 15.0,
    "tests/service/telemetry/test_frame_protocol.py": 15.0,
    "tests/service/history/test_compaction.py": 15.0,
    "tests/probes/test_nvml_events.py": 15.0,
    "tests/service/exposition/test_remote_write.py": 15.0,
    "tests/test_words.py": 15.0,
    "tests/detectors/hang/test_stalled_collective.py": 15.0,
    "tests/service/bad_input/test_paths.py": 15.0,
}
"""Seconds of the long units on a machine without a record, as CI's are; only their order matters: none may be last.
Pytest's cache has them after a whole run (``RECORD``)."""
SECONDS_A_TEST: Final = 0.1
"""For units without a record, as the suite's mean is."""
ALL_BESIDE_OTHERS: Final = "not exclusive"
"""What ``make test`` asks for in its first pass: still every unit."""
_MARK: Final = re.compile(r"""^(?:@|\s+|pytestmark\s*=.*)pytest\.mark\.xdist_group\(["'](\w+)["']\)""", re.MULTILINE)


@cache
def group_of(path: Path) -> str | None:
    """The group that a test file's mark names: the controller collects nothing, so it reads the file."""
    found = _MARK.search(path.read_text(encoding="utf-8")) if path.is_file() else None
    return found and found.group(1)


def unit_of(nodeid: str, root: Path) -> str:
    """The group of a test's file, or the file itself."""
    path = nodeid.split("::", 1)[0]
    return group_of(root / path) or path


def longest_first(sizes: dict[str, int], recorded: dict[str, float]) -> list[str]:
    """Units (with how many tests each has) by the seconds that they took, are declared to take, or may take."""

    def seconds(unit: str) -> float:
        return recorded.get(unit, DECLARED.get(unit, SECONDS_A_TEST * sizes[unit]))

    return sorted(sizes, key=seconds, reverse=True)


class GroupScheduling(LoadScopeScheduling):
    """Hands out units, the longest first, and records how long each took."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        self.spent: dict[str, float] = defaultdict(float)

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid, self.config.rootpath)

    def schedule(self) -> None:
        """Order what was collected, then hand out the first units."""
        if self.collection is None and self.registered_collections:
            self._sort(next(iter(self.registered_collections.values())))
        super().schedule()

    def _sort(self, collected: Iterable[str]) -> None:
        """Fill in the order of the queue before it is filled: a key keeps its place in a dictionary."""
        sizes: dict[str, int] = defaultdict(int)
        for nodeid in collected:
            sizes[self._split_scope(nodeid)] += 1
        for unit in longest_first(sizes, self.recorded()):
            self.workqueue[unit] = {}

    def recorded(self) -> dict[str, float]:
        """Seconds that units took in earlier runs."""
        return dict(self.config.cache.get(RECORD, {})) if self.config.cache else {}

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Count the test's seconds to its unit."""
        unit = self._split_scope(self.registered_collections[node][item_index])
        self.spent[unit] += duration
        super().mark_test_complete(node, item_index, duration)
        if not self.has_pending:
            self.record()

    def record(self) -> None:
        """Keep the seconds, unless only a part of the units was asked for."""
        option = self.config.option
        whole = option.markexpr in ("", ALL_BESIDE_OTHERS) and not option.keyword
        if self.config.cache and whole:
            self.config.cache.set(RECORD, self.recorded() | {unit: round(s, 2) for unit, s in self.spent.items()})
