"""In which proportion replicas divide what they hold alike: by the rates at which their disks took the last steps.

The manifests of complete steps say how fast each share was written. Whoever begins a step first writes the weights down
in a file that is never replaced, and all replicas take them from there: the shares of a step are of one division
however late a node reads, and no message is sent.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.manifest import (
    CheckpointError,
    CheckpointPart,
    Division,
    Manifest,
    PartEntry,
    division_name,
    read_checked,
    remove_file,
    write_checked,
)

FASTEST: Final = 1024
"""Weight of the fastest disk. One that is a thousand times slower still writes a little, so that its rate is known."""
TOLERANCE: Final = 1.1
"""A division stays while a step takes at most so many times as long as with the best one: noise changes none."""
STEPS: Final = 2
"""Complete steps whose higher rate counts: one slow write changes nothing, two do."""
LEAST_SECONDS: Final = 1.0
"""Of a step: shorter writes measure how long files take to open and sync, and there is little to gain."""
_NO_LINKS: Final = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}
"""What file systems without hard links say."""


def weights_of(run: RunDirectory, epoch: int, generation: int, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Weights of the shares of ``ranks`` in a step; empty: the shares are equal.

    They are equal in the first step of a generation, and where the file system has no hard links.

    Args:
        run: of the job.
        epoch: the step, which is about to be written.
        generation: in which it was committed. Rates of another one may be of other nodes.
        ranks: the replicas that divide a copy among themselves, in order.

    Raises:
        CheckpointError: the division is damaged.
        OSError: the disk refused.
    """
    path = run.step(epoch) / division_name(ranks[0])
    if not path.exists() and not _propose(path, Division(ranks=ranks, weights=_choose(run, generation, ranks))):
        return ()
    return _read(path, ranks)


def _read(path: Path, ranks: tuple[int, ...]) -> tuple[int, ...]:
    found = read_checked(path, Division)
    return found.weights if found.ranks == ranks and len(found.weights) == len(ranks) else ()


def _propose(path: Path, division: Division) -> bool:
    """Write ``division`` unless another one is there; whether one is there now."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        write_checked(scratch, division)
        os.link(scratch, path)  # unlike a rename, it never replaces
    except FileExistsError:
        return True
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return False
    finally:
        remove_file(scratch)
    return True


def _choose(run: RunDirectory, generation: int, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Weights out of what the newest complete steps of ``generation`` say."""
    weights: tuple[int, ...] = ()
    steps: list[list[PartEntry]] = []
    for manifest in islice(run.complete(), STEPS):
        shares = _shares(manifest, generation, ranks)
        if not shares:
            break
        if not steps:
            with contextlib.suppress(CheckpointError):
                weights = _read(run.step(manifest.epoch) / division_name(ranks[0]), ranks)
        steps.append(shares)
    if not steps or max(share.seconds or 0.0 for share in steps[0]) < LEAST_SECONDS:
        return weights
    return rebalance(weights, [max(map(_rate, shares)) for shares in zip(*steps, strict=True)])


def _shares(manifest: Manifest, generation: int, ranks: tuple[int, ...]) -> list[PartEntry]:
    """Of ``ranks``; none if one of them wrote no share in ``generation``."""
    known = {p.rank: p for p in manifest.parts if p.seconds is not msgspec.UNSET and p.generation == generation}
    return [known[rank] for rank in ranks] if known.keys() >= set(ranks) else []


def _rate(share: PartEntry) -> float:
    return max(share.nbytes, 1) / max(share.seconds or 0.0, 1e-9)


def rebalance(weights: tuple[int, ...], rates: list[float]) -> tuple[int, ...]:
    """``weights`` (empty: equal) if they will do for ``rates`` (bytes a second), or else proportional ones."""
    now = weights or (1,) * len(rates)
    seconds = max(weight / rate for weight, rate in zip(now, rates, strict=True)) / sum(now)
    if seconds <= TOLERANCE / sum(rates):  # for a byte of the step
        return weights
    found = tuple(max(1, round(FASTEST * rate / max(rates))) for rate in rates)
    return found if len(set(found)) > 1 else ()


def is_covered(step: Path, members: list[CheckpointPart]) -> bool:
    """Whether replicas' parts hold all of what they hold alike: one that is whole, or all shares of one division.

    Raises:
        CheckpointError: replicas that divided their state have other tensors than one another.
    """
    shares = [(*part.share, part.weights) for part in members if part.share is not msgspec.UNSET]
    if len(shares) < len(members):
        return True
    if len({part.layout_digest for part in members}) > 1:
        raise CheckpointError(
            f"{step}: replicas hold other tensors than one another, and cannot divide them among themselves: "
            "use --checkpoint-replicas 0"
        )
    if len({part.alike_digest for part in members}) > 1:
        raise CheckpointError(
            f"{step}: replicas hold other values than one another, as with ZeRO-1 or experts in the script, and cannot "
            "divide them among themselves: use --checkpoint-replicas 0"
        )
    return any({(index, n, weights) for index in range(n)} <= set(shares) for _, n, weights in shares)
