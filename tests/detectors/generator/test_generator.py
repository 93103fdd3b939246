"""Generated runs: equal by seed, different from the healthy run by their truth, and written as any other recording."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mainstay.detectors.base import Samples
from mainstay.detectors.generator import cli
from mainstay.detectors.generator.catalog import CASES, FAULTS, SIZES, TRAPS, fits, generate
from mainstay.detectors.generator.world import JOB, World
from mainstay.detectors.recording.in_memory import InMemoryRecording
from mainstay.detectors.recording.reader import RecordingDirectory
from mainstay.detectors.recording.replay import replay
from mainstay.probes.signals import SIGNALS, SignalSource
from tests.commands import run_here

SMALL: dict[str, Any] = {"dp": 4, "pp": 2, "tp": 4, "steps": 30, "seconds": 1.5}
WIDE: dict[str, Any] = SMALL | {"dp": 12, "pp": 1, "tp": 8}
"""Three leaves."""


def small(name: str, seed: int, *, damaged: bool = False) -> tuple[InMemoryRecording, Any, World]:
    world, truth = generate(name, seed, damaged=damaged, **(WIDE if name == "slow_spine" else SMALL))
    return world.recording(), truth, world


def feeds(recording: InMemoryRecording) -> Iterator[Samples]:
    yield recording.by_step[JOB]
    yield recording.by_progress[JOB]
    yield recording.by_pair[JOB]
    yield from recording.by_source.values()


def equal(one: InMemoryRecording, other: InMemoryRecording) -> bool:
    pairs = zip(feeds(one), feeds(other), strict=True)
    return one.happened == other.happened and all(
        np.array_equal(a.t, b.t) and np.array_equal(a.x, b.x, equal_nan=True) for a, b in pairs
    )


@pytest.mark.parametrize("name", sorted(CASES))
def test_equal_seeds_give_equal_runs_and_the_case_changes_the_run(name: str) -> None:
    made, truth, world = small(name, 3)
    assert equal(made, small(name, 3)[0])
    assert not equal(made, World(seed=3, **(WIDE if name == "slow_spine" else SMALL)).recording())
    assert truth.healthy == (name in TRAPS)
    assert truth.ranks <= set(range(world.mesh.size))
    assert truth.step in {0, world.steps * 2 // 3}


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_fault_names_its_kinds_and_its_culprits_or_the_job(name: str) -> None:
    _, truth, world = small(name, 4)
    for part in truth.parts or (truth,):
        assert part.kinds
        assert part.ranks or part.job_wide
        assert part.ranks != frozenset(range(world.mesh.size)) or part.job_wide


@pytest.mark.parametrize("name", ["slow_rank", "creeping", "intermittent", "slow_node", "bad_image", "throttled"])
def test_slow_ranks_compute_longer_than_in_the_healthy_run_and_no_other_does(name: str) -> None:
    _, truth, world = small(name, 4)
    ratio = world.own["forward_seconds"] / World(seed=4, **SMALL).own["forward_seconds"]
    slower = {int(rank) for rank in np.flatnonzero(ratio.max(axis=0) > 1.01)}
    assert slower == truth.ranks
    assert np.allclose(ratio[: truth.step], 1.0)


def test_every_signal_is_in_the_catalog_and_within_its_range() -> None:
    made, _, _ = small("rack_cooling", 1)
    for samples in feeds(made):
        for place, name in enumerate(samples.signals):
            known = samples.x[:, place][np.isfinite(samples.x[:, place])]
            assert np.all((known >= SIGNALS[name].low) & (known <= SIGNALS[name].high)), name


def test_damaged_telemetry_lacks_samples() -> None:
    intact, damaged = (small("slow_rank", 1, damaged=damaged)[0].by_step[JOB].x for damaged in (False, True))
    lost = np.isnan(damaged).all(axis=1).mean()
    assert 0.02 < lost < 0.1
    assert not np.isnan(intact).all(axis=1).any()


def test_a_congested_spine_needs_three_leaves() -> None:
    assert fits("slow_spine", World(steps=1, **SIZES[2]))
    with pytest.raises(ValueError, match="16 ranks on 2 nodes are too few for slow_spine"):
        generate("slow_spine", 0, steps=30, **SIZES[0])


def test_the_command_writes_a_recording_with_the_same_findings(tmp_path: Path) -> None:
    shape = ("--dp", "4", "--pp", "2", "--tp", "4", "--steps", "60")
    done = run_here("generate", "--fault", "throttled", "--seed", "2", *shape, str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    world, truth = generate("throttled", 2, dp=4, pp=2, tp=4, steps=60)
    told = msgspec.json.decode((tmp_path / "run" / cli.TRUTH).read_bytes())
    assert told["kinds"] == ["thermal_throttle"]
    assert (told["ranks"], told["nodes"], told["step"]) == (sorted(truth.ranks), truth.nodes(world), 40)
    read = RecordingDirectory(tmp_path / "run")
    assert {f.key for f in replay(read, ["throttle", "straggler"])} == {
        f.key for f in replay(world.recording(), ["throttle", "straggler"])
    }
    assert not read.ignored


def test_events_and_hosts_are_in_the_written_recording(tmp_path: Path) -> None:
    cli.save(tmp_path, "out_of_memory", 1, damaged=True, **SMALL | {"steps": 40})
    read = RecordingDirectory(tmp_path)
    assert [event.kind for event in read.events()] == ["process_exit"]
    assert sum(samples.x.size for samples in read.devices(SignalSource.HOST))


def test_a_corpus_has_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "CASES", {name: CASES[name] for name in ("slow_rank", "slow_spine", "swing")})
    monkeypatch.setattr(cli, "SIZES", SIZES[:1])
    done = run_here("generate", "--corpus", "--steps", "30", "--seeds", "2", str(tmp_path))
    assert done.returncode == 0, done.stderr
    index = msgspec.json.decode((tmp_path / cli.INDEX).read_bytes())
    assert len(index) == 8
    assert sum(row["healthy"] for row in index) == 4
    for row in index:
        told = msgspec.json.decode((tmp_path / row["folder"] / cli.TRUTH).read_bytes())
        assert row == {"folder": row["folder"], **told}


def test_the_command_lists_every_case() -> None:
    done = run_here("generate", "--list")
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(CASES)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name an output folder"),
        (("--fault", "gremlins", "x"), "no fault or trap is called 'gremlins'"),
        (("--steps", "5", "x"), "--steps 5 is too few"),
        (("--dp", "1", "x"), "too few for slow_rank"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments: tuple[str, ...], said: str) -> None:
    done = run_here("generate", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_folder_with_a_recording_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "fleet.json").write_text("{}")
    done = run_here("generate", str(tmp_path))
    assert done.returncode == 2
    assert "holds a recording already" in done.stderr
    assert (tmp_path / "fleet.json").read_text() == "{}"
