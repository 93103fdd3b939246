"""Complete a step of a job whose nodes each have a disk of their own, once their directories lie in one.

Ranks whose disk is lost, or whose part is damaged, are decoded from the parity rows beside the others' parts:
``agent.checkpoint_parity`` says who writes those. See decision 70.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mainstay.recovery.agent.parity import Geometry
from mainstay.recovery.agent.parity_store import META, ParityMember, RowDescription, read_description, row_name
from mainstay.recovery.checkpoint import save
from mainstay.recovery.checkpoint.catalog import LATEST, RunDirectory, runs
from mainstay.recovery.checkpoint.listed_files import PartFile
from mainstay.recovery.checkpoint.load import needed_steps, read_tensors
from mainstay.recovery.checkpoint.manifest import (
    MANIFEST,
    CheckpointError,
    CheckpointPart,
    Manifest,
    holds,
    remove_file,
)
from mainstay.recovery.checkpoint.slot_reader import read_slot
from mainstay.recovery.coding import gf
from mainstay.recovery.memory.digest import Bytes, digest
from mainstay.recovery.memory.errors import ArenaError
from mainstay.recovery.memory.layout import Layout

log = logging.getLogger("mainstay.checkpoint")


class DecodeTerm(NamedTuple):
    """The block of ``source`` in codeword ``word``, times ``coefficient``, is a summand of that of ``lost``."""

    source: int
    word: int
    lost: int
    coefficient: int


def rebuild_step(directory: Path, run: str = LATEST, step: int | None = None) -> tuple[Manifest, list[int]]:
    """Complete the newest step that ``directory`` has enough of; the manifest, and the ranks that were decoded.

    Every part is verified first.

    Args:
        directory: with all that is left of the nodes' checkpoint directories, copied into one.
        run: its id, or ``latest``.
        step: only this one; None: any.

    Raises:
        CheckpointError: no step can be completed; says why the newest cannot.
        OSError: the disk refused.
    """
    problems: list[str] = []
    for found in reversed([each for each in runs(directory) if run in {LATEST, each.id}]):
        for epoch in reversed([each for each in found.steps() if step in {None, each}]):
            try:
                return _StepRebuild(save.target_of(found), epoch).carry_out()
            except CheckpointError as error:
                problems.append(str(error))
    wanted = f"step{'' if step is None else f' {step}'} of {'any run' if run == LATEST else f'run {run}'}"
    raise CheckpointError(problems[0] if problems else f"{directory} has no {wanted}")


@dataclass(slots=True)
class _StepRebuild:
    """One step of one run."""

    target: save.WriteTarget
    epoch: int
    files: dict[int, PartFile] = field(default_factory=dict)
    """Rank -> its newest part, whole or not."""
    parts: dict[int, CheckpointPart] = field(default_factory=dict)
    """Rank -> the same, verified."""
    digests: dict[int, int] = field(default_factory=dict)
    """Rank -> digest of the slot in that."""

    @property
    def run(self) -> RunDirectory:
        return self.target.run

    def carry_out(self) -> tuple[Manifest, list[int]]:
        self._verify_parts()
        missing, problems = sorted(self.target.config.writers() - self.parts.keys()), []
        for description, rows in self._groups():
            try:
                self._decode_group(description, rows)
            except CheckpointError as error:
                problems.append(str(error))
        decoded, manifest = [rank for rank in missing if rank in self.parts], None
        if decoded:  # the manifest may be about the damaged parts
            remove_file(self.run.step(self.epoch) / MANIFEST)
        if self.files.keys() <= self.parts.keys():
            try:  # where replicas are equal, one of them is enough
                self._write_full()
                manifest = save.commit(self.target, self.epoch, partial=True)
            except CheckpointError as error:
                problems = problems or [str(error)]
        if manifest is None:
            why = "; ".join(problems) or "no parity of their group is here"
            raise CheckpointError(f"{self.run.step(self.epoch)} lacks the parts of ranks {missing[:8]}: {why}")
        return manifest, decoded

    def _verify_parts(self) -> None:
        self.files = save.newest_parts(self.run.parts(self.epoch), self.target.config.returns)
        for rank, file in self.files.items():
            try:
                part = self.run.part(self.epoch, rank, file.generation)
                self.digests[rank] = self._read_slot(part)[1]
                self.parts[rank] = part
            except (CheckpointError, ArenaError) as error:
                log.warning("rank %d has no part: %s", rank, error)

    def _write_full(self) -> None:
        """If the step has enough parts, write those in full whose bases are in no complete step: other disks lost them.

        Raises:
            CheckpointError: a part changed.
        """
        if save.complete_parts(self.target.config, self.run.parts(self.epoch), partial=True) is None:
            return
        for rank, part in self.parts.items():
            if needed_steps(self.run, [part]) is None:
                slot = self._read_slot(part)[0]
                remove_file(self.run.step(self.epoch) / MANIFEST)  # of the part as it was; without its bases it is void
                place = (self.epoch, rank, part.generation)
                self.parts[rank] = save.write_image(self.target, place, part.layout(), slot, replaces=True)

    def _read_slot(self, part: CheckpointPart) -> tuple[Bytes, int]:
        layout = part.layout()
        slot: Bytes = np.empty(layout.nbytes, np.uint8)
        return slot, read_slot(self.run, part, layout, slot)

    # Parity

    def _groups(self) -> Iterator[tuple[RowDescription, dict[int, CheckpointPart]]]:
        """Place -> rows, of each group that lacks a part. Damaged rows are left out."""
        found: dict[RowDescription, dict[int, CheckpointPart]] = {}
        for part in self.run.parity(self.epoch):
            try:
                description = read_description(read_tensors(self.run, part)[META])
                ranks = [member.rank for member in description.parts]
                if holds(self.target.config.returns, self.epoch, part.generation) and not self.parts.keys() >= {*ranks}:
                    found.setdefault(description, {})[ranks.index(part.rank)] = part
            except ValueError as error:
                log.warning("rank %d has no parity: %s", part.rank, error)
        yield from found.items()

    def _decode_group(self, description: RowDescription, rows: Mapping[int, CheckpointPart]) -> None:
        """Write the parts that a group lacks.

        Raises:
            CheckpointError: too much is lost, or other bytes come out than were encoded.
        """
        members, geometry = description.parts, Geometry(len(description.parts), description.parity)
        held = {place for place, member in enumerate(members) if self.digests.get(member.rank) == member.digest}
        size = geometry.stripe_bytes(max(member.nbytes for member in members))
        slots = {p: np.zeros(member.nbytes, np.uint8) for p, member in enumerate(members) if p not in held}
        try:
            terms = plan_decode(geometry, held, rows.keys())
        except CheckpointError as error:
            raise CheckpointError(f"parity group {[member.rank for member in members]}: {error}") from error
        for source, of_source in groupby(terms, key=lambda term: term.source):
            slot = self._read_slot(self.parts[members[source].rank])[0] if source in held else np.empty(0, np.uint8)
            kept = read_tensors(self.run, rows[source]) if source in rows else {}
            for term in of_source:
                if source in geometry.parity_places(term.word):
                    block = kept[row_name(geometry.rows_of(source).index(term.word))]
                else:
                    start, length = geometry.span(term.word, source, size, len(slot))
                    block = slot[start : start + length]
                start, length = geometry.span(term.word, term.lost, size, members[term.lost].nbytes)
                length = min(length, len(block))  # a slot counts as zeros beyond its end
                gf.multiply_add(term.coefficient, block[:length], slots[term.lost][start : start + length])
        layouts = {key: text for part in rows.values() for key, text in (part.layouts or {}).items()}
        for place, decoded in slots.items():
            if members[place].rank not in self.parts:
                self._write_decoded(members[place], layouts, decoded)

    def _write_decoded(self, member: ParityMember, layouts: Mapping[int, str], slot: Bytes) -> None:
        rank, generation = member.rank, member.generation
        if digest(slot) != member.digest or member.layout_digest not in layouts:
            raise CheckpointError(f"rank {rank} was decoded to other bytes than it had")
        if rank in self.files and self.files[rank].generation != generation:
            raise CheckpointError(f"the parity of rank {rank} is of generation {generation}, not of its damaged part's")
        layout = Layout.from_json(layouts[member.layout_digest].encode())
        self.parts[rank] = save.write_image(self.target, (self.epoch, rank, generation), layout, slot)


def plan_decode(geometry: Geometry, held: Collection[int], rows: Collection[int]) -> list[DecodeTerm]:
    """What to add up for the slots of all places that are not ``held``, by source: pure.

    Args:
        geometry: of the group.
        held: places whose slots are here.
        rows: places whose rows are here.

    Raises:
        CheckpointError: too much is lost.
    """
    terms = []
    for word in range(geometry.members):
        lost = [place for place in geometry.data_places(word) if place not in held]
        kept = [place for place in geometry.parity_places(word) if place in rows]
        if len(lost) > len(kept):
            gone, total = geometry.members - len(held), geometry.members
            problem = f"{gone} of {total} parts and {total - len(rows)} of {total} parity files are lost"
            raise CheckpointError(f"{problem}; it covers {geometry.parity}")
        sources = [*(place for place in geometry.data_places(word) if place in held), *kept[: len(lost)]]
        present, missing = ([geometry.block(word, place) for place in places] for places in (sources, lost))
        table = geometry.code.decode_coefficients(present, missing)
        terms += [
            DecodeTerm(source, word, place, int(table[i, j]))
            for i, place in enumerate(lost)
            for j, source in enumerate(sources)
        ]
    return sorted(terms)
