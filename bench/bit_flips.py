"""Ten thousand flipped bits in data, parity, copies, records, headers, layouts: a scrub finds and repairs them.

``python -m bench.bit_flips [--json FILE]``. Agents with real arenas on loopback, one bit at a time; after each the
agent makes one pass, and all must be as it was: the slot's bytes and its record, no step undone. Counts, no timing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bench.lib_agents import Cluster, LocalAgent, contents, until
from bench.lib_slots import read_slot
from bench.report import Row, publish, target_file
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.records import CELL_BYTES, PAGE, SlotState, Word, cell_at, pack_header
from mainstay.recovery.protection_scheme import parse

FLIPS = 10_000
PLANTS = 50
SCHEMES = (("xor", 4), ("rs:2", 4), ("copies:2", None))
NODES = 4
EPOCH = 1
SEED = 20_261_122


@dataclass
class Tally:
    """By part of an arena: bits flipped, found, and repaired."""

    flipped: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)


def rows() -> list[Row]:
    return [*flip_rows(), *drill_rows()]


def flip_rows(flips: int = FLIPS) -> list[Row]:
    tally, chance = Tally(), random.Random(SEED)
    for text, size in SCHEMES:
        with Cluster(NODES, parse(text, size)) as cluster:
            cluster.step(EPOCH)
            for agent in cluster.agents:
                agent.service.scrubber.scan()
            for _ in range(-(-flips // len(SCHEMES))):
                _one(cluster, chance, tally)
    return [_row(part, tally) for part in sorted(tally.flipped)]


def drill_rows(plants: int = PLANTS) -> list[Row]:
    """Parity that was wrong when it was written, under a good digest: one period of drills after each."""
    found = unfounded = 0
    for text, size in (s for s in SCHEMES if not s[0].startswith("copies")):
        chance = random.Random(SEED)
        with Cluster(NODES, parse(text, size)) as cluster:
            cluster.step(EPOCH)
            for _ in range(plants):
                number = chance.randrange(NODES)
                _plant(cluster.agents[number], chance)
                found += False in [agent.service.scrubber.drill() for agent in cluster.agents]
                until(lambda at=number: cluster.arenas[at].word(Word.PARITY_FLOOR) == EPOCH, "the row")  # type: ignore[misc]
                unfounded += [agent.service.scrubber.drill() for agent in cluster.agents].count(False)
    count = 2 * plants
    return [
        Row(
            claim="planted stale parity: found in the next period of drills; drills of good parity that fail",
            figure=f"{found} of {count}; {unfounded}", unit="", target="all; 0", kind="live", n=count,
            holds=found == count and not unfounded,
        )
    ]  # fmt: skip


def _plant(agent: LocalAgent, chance: random.Random) -> None:
    """One byte of one row is wrong, as if the encoder had read something else, and its digest says that it is right."""
    rows = agent.service.node.rows
    ((key, _),) = rows.all()
    row = rows.find(key, EPOCH)
    good = [row.data(word).copy() for word in row.geometry.rows_of(key.place)]
    arena, slot, out = rows.begin_row(key, row.parity, row.size)
    for old, new in zip(good, out, strict=True):
        new[:] = old
    # Within the shortest stripe: beyond the end of all slots there is nothing that a row could be wrong about.
    chance.choice(out)[chance.randrange(min(part.nbytes for part in row.parts) // row.geometry.data)] ^= 1
    rows.commit(arena, slot, EPOCH, row.parity, row.parts)


def _row(part: str, tally: Tally) -> Row:
    count, found, repaired = tally.flipped[part], tally.found[part], tally.repaired[part]
    return Row(
        claim=f"flipped bits in {part}: found and repaired in place", figure=f"{found}, {repaired} of {count}",
        unit="", target="all", holds=found == repaired == count, kind="live", n=count,
    )  # fmt: skip


def _one(cluster: Cluster, chance: random.Random, tally: Tally) -> None:
    number = chance.randrange(len(cluster.agents))
    agent, own = cluster.agents[number], cluster.arenas[number]
    part, arena, at = _aim(agent, own, chance)
    before = agent.service.scrubber.counts.found
    record = own.find(EPOCH)
    arena.raw[at] ^= 1 << chance.randrange(8)
    agent.service.scrubber.scan()
    tally.flipped[part] += 1
    tally.found[part] += agent.service.scrubber.counts.found > before
    if arena is not own:
        until(lambda: own.word(Word.PARITY_FLOOR) == EPOCH, "what is made again")
    tally.repaired[part] += own.find(EPOCH) == record and _as_it_was(cluster, number)


def _aim(agent: LocalAgent, own: Arena, chance: random.Random) -> tuple[str, Arena, int]:
    """(part, arena, byte): a part by chance, then an arena that has it, then a byte that means something."""
    kept = [a for _, a in agent.service.node.rows.all()]
    copied = [a for _, a in agent.service.store.copies.all()]
    choices: dict[str, tuple[list[Arena], Callable[[Arena], int]]] = {
        "data": ([own], lambda a: _in_slot(a, chance)),
        "parity": (kept, lambda a: _in_slot(a, chance)),
        "copies": (copied, lambda a: _in_slot(a, chance)),
        "records": ([own, *kept, *copied], lambda a: _in_record(a, chance)),
        "header": ([own, *kept, *copied], lambda a: chance.randrange(len(pack_header(a.header)))),
        "layout": ([own, *kept, *copied], lambda a: PAGE + chance.randrange(a.header.layout_bytes)),
    }
    part = chance.choice([name for name, (arenas, _) in choices.items() if arenas])
    arenas, where = choices[part]
    arena = chance.choice(arenas)
    return part, arena, where(arena)


def _in_slot(arena: Arena, chance: random.Random) -> int:
    record = arena.find(EPOCH)
    return arena.header.slot_at(record.slot) + chance.randrange(record.nbytes)


def _in_record(arena: Arena, chance: random.Random) -> int:
    slot = chance.randrange(arena.header.slots)
    return cell_at(slot, agent=chance.random() < 0.5) + chance.randrange(CELL_BYTES)


def _as_it_was(cluster: Cluster, number: int) -> bool:
    """The rank's slot to the bit, and all that its agent keeps for others verified; the files hold together."""
    agent, own = cluster.agents[number], cluster.arenas[number]
    found = read_slot(own, EPOCH)["state"]
    if not np.array_equal(found, contents(number, EPOCH, len(found))):
        return False
    kept = [a for _, a in [*agent.service.node.rows.all(), *agent.service.store.copies.all()]]
    for arena in (own, *kept):
        Arena.attach(arena.path).close()
        record = arena.find(EPOCH)
        if record.state is not SlotState.VERIFIED:
            return False
        arena.check(record)
    return agent.service.scrubber.counts.lost == 0


if __name__ == "__main__":
    file = target_file("bit_flips")
    publish("bit_flips", rows(), file)
