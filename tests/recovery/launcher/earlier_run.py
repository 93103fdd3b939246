"""A run that ended, as far as a coordinator that resumes it looks at its files."""

from __future__ import annotations

from pathlib import Path

import msgspec

from mainstay.recovery.checkpoint.manifest import (
    MANIFEST,
    Manifest,
    PartEntry,
    RunInfo,
    run_name,
    step_name,
    write_checked,
)
from mainstay.recovery.checkpoint.quantization_bound import QuantizationBound

EARLIER = "01997c4e-8f00-7000-8000-000000000001"


def earlier_step(
    directory: Path, epoch: int, *, dp: int = 2, pp: int = 2, replicated: bool = True,
    quantized: QuantizationBound | msgspec.UnsetType = msgspec.UNSET, run_id: str = EARLIER,
) -> None:  # fmt: skip
    """A whole step of an earlier run, as far as a coordinator looks at one."""
    run = directory / run_id
    (run / step_name(epoch)).mkdir(parents=True)
    write_checked(run / run_name(3), RunInfo(run=run_id, job="job", generation=3, dp=dp, pp=pp, tp=1))
    parts = tuple(PartEntry(rank=rank, generation=3, nbytes=100, check="") for rank in range(dp * pp))
    manifest = Manifest(
        run=run_id, job="job", epoch=epoch, dp=dp, pp=pp, tp=1, replicated=replicated, time=1.0, parts=parts,
        quantized=quantized,
    )  # fmt: skip
    write_checked(run / step_name(epoch) / MANIFEST, manifest)
