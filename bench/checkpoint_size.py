"""How small checkpoints become, and what that costs: differences, byte planes with zstd, and quantized values.

An embedding job of which each step touches 5% of the rows, and a transformer with Adam, are trained here. Slots of
their steps are encoded, decoded, and compared. Jobs that continue from quantized slots are compared with the job that
continues from the exact one, on held-out data. One thread; speeds are of processor time, beside a copy of these bytes.
"""

from __future__ import annotations

import copy
import functools
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.lib_checkpoint_models import TOUCHED, DenseJob, EmbeddingJob, Job, layout_of, restore, slot_of
from bench.lib_encoded_slots import chain_in_memory, decoded, fill, readable
from bench.lib_encoded_writes import EncodedWrites
from bench.report import Row, publish, target_file
from mainstay.recovery.checkpoint.encoding.chain_policy import ChainCosts, Link, choose_base
from mainstay.recovery.checkpoint.encoding.encoded_slot import (
    SlotDigests,
    SlotId,
    SlotIndex,
    encode_slot,
    slot_digests,
    write_encoded_slot,
)
from mainstay.recovery.checkpoint.encoding.quantized import BITS
from mainstay.recovery.checkpoint.encoding.slot_chain import SlotChain
from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.layout import Layout

FILLED = 80
"""Steps of the embedding job before the first slot: almost every row has moments."""
STEPS = 24
"""Of the embedding job after these, each of them written."""
SLOWER = 3
"""How many times as long as that of a full step a restore may take."""
WRITTEN = 24
"""Steps that a writer writes, of which the first is full."""
WARM = 300
"""Steps of the transformer before the first slot: its moments have settled."""
MORE = 200
"""Steps after a restore."""
SMALLER = {8: 3.5, 4: 6.0, 2: 10.0}
LOSS_BOUND = {8: 0.005, 4: 0.02, 2: 0.05}
"""Relative to the loss of the exact restore; stated before it was measured."""
LARGE = Layout.build({"param.w": ("float32", (16 * 1024, 1024))})
"""64 MiB, to measure speeds."""


def raw_bytes(layout: Layout) -> int:
    return sum(spec.nbytes for spec in layout.tensors)


def encoded_bytes(layout: Layout, slot: Bytes, base: Bytes | None = None, *, dense: bool = False) -> int:
    """Bytes of the exact blobs, which are decoded and compared first; of a dense job, the base is subtracted."""
    known = None if base is None else readable(layout, slot, base) if dense else slot_digests(layout, base)
    blobs = [*encode_slot(layout, slot, known)]
    if not np.array_equal(decoded(layout, blobs, base), slot):
        raise RuntimeError("an exact encoding does not decode to the same bits")
    return sum(map(len, blobs))


def live(claim: str, figure: float, unit: str, target: str = "", *, holds: bool | None = None, **more: Any) -> Row:
    return Row(claim=claim, figure=round(figure, 4), unit=unit, target=target, holds=holds, kind="live", **more)


# The embedding job


Sized = Callable[[int, int | None], int]
"""Bytes of a step against a base, or in full."""


def written_chain(sized: Sized, costs: ChainCosts, *, since_full: bool) -> list[Link]:
    """What is written if the size of each choice is known; ``since_full``: against the last full step alone."""
    links: list[Link] = []
    cycle: list[Link] = []
    for epoch in range(STEPS):
        first, last = (cycle[0].epoch, cycle[-1].epoch) if cycle else (None, None)
        since_previous = sized(epoch, first if since_full else last)
        base = choose_base(cycle, costs, since_full=sized(epoch, first), since_previous=since_previous)
        link = Link(epoch, sized(epoch, base), base)
        cycle = [link] if base is None else [*cycle, link]
        links.append(link)
    return links


def embedding_rows() -> Iterator[Row]:
    job = EmbeddingJob()
    for number in range(FILLED):
        job.step(number)
    layout, slots = layout_of(job), []
    for number in range(FILLED, FILLED + STEPS):
        job.step(number)
        slots.append(slot_of(job, layout))
    raw, what = raw_bytes(layout), f"embedding, {TOUCHED:.0%} of the rows touched"
    exact = [encoded_bytes(layout, new, old) / raw for old, new in itertools.pairwise(slots)]
    yield live(
        f"{what}: a difference to the step before", 100 * statistics.mean(exact), "% of full", "<= 12",
        holds=max(exact) <= 0.12, n=len(exact),
        baseline=f"greatest {max(exact):.1%}",
    )  # fmt: skip
    row, costs = chain_costs(layout, slots)
    yield row

    @functools.cache
    def sized(epoch: int, base: int | None) -> int:
        return encoded_bytes(layout, slots[epoch], None if base is None else slots[base])

    for policy in ("intermittent", "measured"):
        links = written_chain(sized, costs, since_full=policy == "intermittent")
        fulls = sum(link.base is None for link in links)
        share = sum(link.nbytes for link in links) / len(links) / raw
        yield live(
            f"{what}: policy {policy}, all steps", 100 * share, "% of full a step", n=STEPS,
            target="<= 12" if policy == "measured" else "", holds=share <= 0.12 if policy == "measured" else None,
            baseline=f"{fulls} full steps of {STEPS}; a restore takes at most {SLOWER} times that of a full step",
        )  # fmt: skip


def chain_costs(layout: Layout, slots: Sequence[Bytes]) -> tuple[Row, ChainCosts]:
    """Write a chain of files, restore from its first and its last, and say what bytes and files cost."""
    with tempfile.TemporaryDirectory() as folder:

        def file(slot: SlotId) -> Path:
            return Path(folder) / str(slot.epoch)

        index: SlotIndex | None = None
        sizes, seconds = [], {}
        for epoch, slot in enumerate(slots):
            own = SlotId("run", epoch, 0, 1)
            blobs = encode_slot(layout, slot, slot_digests(layout, slots[epoch - 1]) if index else None)
            index = write_encoded_slot(file(own), own, layout, blobs, base=index)
            sizes.append(file(own).stat().st_size)
        out = np.zeros(layout.nbytes, np.uint8)
        for epoch in (0, STEPS - 1):
            own = SlotId("run", epoch, 0, 1)
            seconds[epoch] = fastest(lambda: fill(SlotChain.open(file(own), file), out))  # noqa: B023
            if not np.array_equal(out, slots[epoch]):
                raise RuntimeError("a chain does not restore the same bits")
    full, chain = seconds[0], seconds[STEPS - 1]
    rate = sizes[0] / full
    row = live(
        f"restore from a chain of {STEPS} files, bit-equal", chain / full, "times a full file", n=3,
        baseline=f"bytes {sum(sizes) / sizes[0]:.2f} times; a full file: {full * 1000:.0f} ms of processor time",
    )  # fmt: skip
    return row, ChainCosts(
        read_bytes_per_second=rate, max_restore_seconds=SLOWER * full,
        link_seconds=max(0, chain - sum(sizes) / rate) / (STEPS - 1),
    )  # fmt: skip


# As a job writes them


def written_rows(job: Job, what: str, warm: int, largest: float) -> Iterator[Row]:
    """Steps by the process that writes in a job, and beside each of them the same step in full."""
    for number in range(warm):
        job.step(number)
    with EncodedWrites(job) as writes:
        steps = []
        for number in range(WRITTEN):
            job.step(warm + number)
            steps.append(writes.write(number + 1))
    full, encoded = ([step[encoding].nbytes for step in steps] for encoding in ("full", "exact"))
    share, fulls = 100 * sum(encoded) / sum(full), sum(step["exact"].is_full for step in steps)
    read = sum(step["exact"].read for step in steps) / sum(full)
    yield live(
        f"{what}: written by a job, all steps", share, "% of full a step", f"<= {largest:g}", holds=share <= largest,
        n=WRITTEN, note="each restored to the same bits",
        baseline=f"{100 / share:.2f} times smaller with {fulls} full ones; {read:.2f} bytes read for each of the state",
    )  # fmt: skip
    slower = statistics.median(step["exact"].seconds / step["full"].seconds for step in steps[1:])
    yield live(
        f"{what}: time to write an encoded step", slower, "times a full one", n=WRITTEN - 1,
        baseline=f"full: {1000 * statistics.median(step['full'].seconds for step in steps):.0f} ms",
        note="the same step to the same disk just before, with fsync",
    )  # fmt: skip


# The transformer


def dense_rows(job: DenseJob, precision: str) -> Iterator[Row]:
    for number in range(WARM):
        job.step(number)
    layout, slots = layout_of(job), {}
    for number in range(WARM, WARM + 11):
        slots[number - WARM] = slot_of(job, layout)
        job.step(number)
    raw, newest, what = raw_bytes(layout), slots[10], f"dense Adam, {precision}"
    bases = {"alone": None, "difference to 1 step before": slots[9], "difference to 10 steps before": slots[0]}
    for name, base in bases.items():
        smaller = raw / encoded_bytes(layout, newest, base, dense=True)
        yield live(f"{what}: lossless, {name}", smaller, "times smaller", ">= 1.25", holds=smaller >= 1.25)
    for bits in () if job.mixed else BITS:
        nbytes = sum(map(len, encode_slot(layout, newest, bits=bits)))
        smaller, least = raw / nbytes, SMALLER[bits]
        claim = f"{what}: {bits} bit uniform"
        yield live(claim, smaller, "times smaller", f">= {least}", holds=smaller >= least)


# Training from a quantized slot


def trained(job: Job, layout: Layout, slot: Bytes, begin: int) -> float:
    """The held-out loss after ``MORE`` steps from a slot."""
    restore(job, layout, slot)
    for number in range(begin, begin + MORE):
        job.step(number)
    return job.held_out()


def accuracy_rows(job: Job, what: str, begin: int) -> Iterator[Row]:
    layout = layout_of(job)
    slot, before = slot_of(job, layout), job.held_out()
    exact = trained(copy.deepcopy(job), layout, slot, begin)
    for bits in BITS:
        near = decoded(layout, encode_slot(layout, slot, bits=bits))
        found = trained(copy.deepcopy(job), layout, near, begin)
        above, bound = found / exact - 1, LOSS_BOUND[bits]
        yield live(
            f"{what}: loss {MORE} steps after a restore, {bits} bit uniform", 100 * above, "% above exact",
            f"<= {100 * bound:g}", holds=above <= bound,
            baseline=f"exact {exact:.4f}, at the restore {before:.4f}",
        )  # fmt: skip


# Speed


def fastest(work: Callable[[], object], rounds: int = 3) -> float:
    """Seconds of processor time, which other programs disturb less than time on the wall."""
    seconds = []
    for _ in range(rounds):
        begun = time.thread_time()
        work()
        seconds.append(time.thread_time() - begun)
    return min(seconds)


def speed_rows() -> Iterator[Row]:
    random = np.random.default_rng(1)
    values = random.normal(0, 0.02, LARGE.tensors[0].shape).astype(np.float32)
    base = values.reshape(-1).view(np.uint8)
    near = (values * (1 + 1e-3 * random.standard_normal(values.shape))).astype(np.float32)
    slot, out = near.reshape(-1).view(np.uint8), np.empty(LARGE.nbytes, np.uint8)
    few = values.copy()
    few[:: round(1 / TOUCHED)] += 1
    sparse = few.reshape(-1).view(np.uint8)
    cases: list[tuple[str, Bytes, SlotDigests | None, int | None]] = [
        ("lossless, alone", slot, None, None),
        ("lossless, difference of all words", slot, readable(LARGE, slot, base), None),
        ("5% of the rows changed", sparse, slot_digests(LARGE, base), None),
        *((f"{bits} bit uniform", slot, None, bits) for bits in BITS),
    ]
    for name, data, below, bits in cases:
        copied = fastest(lambda: np.copyto(out, slot), 5)
        encoding = fastest(lambda: list(encode_slot(LARGE, data, below, bits)), 2)  # noqa: B023
        chain = chain_in_memory(LARGE, encode_slot(LARGE, data, below, bits), base)
        decoding = fastest(lambda: fill(chain, out), 2)  # noqa: B023
        gigabytes = LARGE.nbytes / 1e9
        yield live(
            f"speed of one thread: {name}", gigabytes / encoding, "GB/s to encode", n=2,
            baseline=f"decode {gigabytes / decoding:.2f} GB/s; memcpy {gigabytes / copied:.1f} GB/s",
        )  # fmt: skip


def main() -> None:
    file = target_file("checkpoint_size")
    torch.set_num_threads(1)
    rows = [*embedding_rows()]
    dense = DenseJob()
    rows += [*dense_rows(dense, "float32"), *dense_rows(DenseJob(mixed=True), "bfloat16 with float32 master")]
    rows += accuracy_rows(dense, "transformer", WARM + 11)
    embedding = EmbeddingJob()
    for number in range(MORE):
        embedding.step(number)
    rows += accuracy_rows(embedding, "embedding", MORE)
    rows += speed_rows()
    rows += written_rows(EmbeddingJob(), f"embedding, {TOUCHED:.0%} of the rows touched", FILLED, 12.0)
    rows += written_rows(DenseJob(), "dense Adam, float32", WARM, 80.0)
    publish("checkpoint_size", rows, file)


if __name__ == "__main__":
    main()
