"""``mainstay generate``. This module writes the files; the generator itself is pure."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from cyclopts.types import PositiveInt

from mainstay.detectors.cli_errors import BAD_INPUT, Flag, InputError, one_line
from mainstay.detectors.generator.catalog import CASES, FAULTS, SIZES, fits, generate
from mainstay.detectors.generator.truth import Truth
from mainstay.detectors.generator.world import World
from mainstay.detectors.recording.in_memory import write

TRUTH, INDEX = "truth.json", "corpus.json"
_LEAST_STEPS = 30


@one_line("mainstay generate", {ValueError: BAD_INPUT, OSError: BAD_INPUT})
def generate_command(
    output: Path | None = None,
    /,
    *,
    fault: str = "slow_rank",
    seed: int = 0,
    dp: PositiveInt = 8,
    pp: PositiveInt = 2,
    tp: PositiveInt = 4,
    steps: PositiveInt = 120,
    damaged: Flag = False,
    list_faults: Annotated[bool, Parameter(name="--list", negative=())] = False,
    corpus: Flag = False,
    seeds: PositiveInt = 1,
) -> int:
    """Generate a recording of a training run with a known fault, for `mainstay replay`.

    The same options give the same recording. It is simulated, and no GPU is needed.

    Exit code: 0 written; 2 invalid input.

    Parameters
    ----------
    output
        Write the recording and `truth.json` (what findings are right) to this folder; it must hold no recording yet.
    fault
        Generate this fault or healthy trap; `--list` shows all.
    seed
        Draw all random numbers from this seed.
    dp
        Number of replicas.
    pp
        Number of pipeline stages.
    tp
        Number of ranks of a tensor-parallel group.
    steps
        Number of steps; the fault begins after two thirds of them.
    damaged
        Lose 5% of the samples, and let some clocks and timers be wrong.
    list_faults
        Print the faults and the healthy traps.
    corpus
        Write every fault and trap in three sizes (16, 64, and 256 ranks), intact and damaged, with an index.
    seeds
        With `--corpus`: number of runs of each.
    """
    if list_faults:
        return _print_cases()
    if output is None:
        raise InputError("name an output folder, or give --list")
    if steps < _LEAST_STEPS:
        raise InputError(f"--steps {steps} is too few: detectors learn from at least {_LEAST_STEPS}")
    if not corpus:
        save(output, fault, seed, damaged=damaged, dp=dp, pp=pp, tp=tp, steps=steps)
        return 0
    index = list(_corpus(output, seed, seeds, steps))
    _write(output / INDEX, index)
    print(f"{output}: {len(index)} recordings, listed in {INDEX}")
    return 0


def _print_cases() -> int:
    for name, case in CASES.items():
        text = (case.__doc__ or "").partition("\n")[0]
        print(f"{name:22} {'fault' if name in FAULTS else 'trap':6} {text}")
    return 0


def _corpus(output: Path, first: int, seeds: int, steps: int) -> Any:
    """Write every run; yield its row of the index."""
    for (name, shape), damaged, seed in product(product(CASES, SIZES), (False, True), range(first, first + seeds)):
        if fits(name, World(steps=1, **shape)):
            ranks = shape["dp"] * shape["pp"] * shape["tp"]
            folder = f"{name}-{ranks}{'-damaged' if damaged else ''}-{seed}"
            yield {"folder": folder, **save(output / folder, name, seed, damaged=damaged, steps=steps, **shape)}


def save(folder: Path, name: str, seed: int, *, damaged: bool, **shape: int) -> dict[str, Any]:
    """Write a recording with its truth; return the truth as in its file.

    Raises:
        ValueError: there is no such case, or the run is too small for it.
        FileExistsError: the folder holds a recording already.
    """
    world, truth = generate(name, seed, damaged=damaged, **shape)
    write(world.recording(), folder)
    told = {"fault": name, "healthy": truth.healthy, "seed": seed, "damaged": damaged, **shape, **_said(world, truth)}
    _write(folder / TRUTH, told)
    return told


def _said(world: World, truth: Truth) -> dict[str, Any]:
    """A truth as ``truth.json`` has it; ``parts`` are independent faults."""
    return {
        "step": truth.step,
        "kinds": sorted(truth.kinds),
        "ranks": sorted(truth.ranks),
        "nodes": truth.nodes(world),
        "job_wide": truth.job_wide,
        "also": sorted(truth.also),
        "parts": [_said(world, part) for part in truth.parts],
    }


def _write(path: Path, content: Any) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
