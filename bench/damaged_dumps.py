"""``mainstay analyze-hang`` on damaged flight-recorder dumps: it may be unsure, and never certain and wrong. Replayed.

``python -m bench.damaged_dumps [--json FILE]``. Dumps of two hangs of 16 ranks, each with two faulty ranks
(``MAINSTAY_TEST_DATA``, else ``shared/data`` beside the project), are damaged at random, one to three ways at once.
"""

from __future__ import annotations

import copy
import gzip
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.report import Row, publish, target_file
from mainstay.detectors.hang.analysis import HangDiagnosis, diagnose
from mainstay.detectors.hang.flight_recorder import dumps_of

DATA = Path(os.environ.get("MAINSTAY_TEST_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
SETS = 2000
HOUR = 3600 * 10**9
Dumps = dict[str, Any]


def _lose(dumps: Dumps, rng: np.random.Generator) -> None:
    """Files that are missing, cut, or no dumps: nothing is read from them."""
    for rank in rng.choice(sorted(dumps), int(rng.integers(1, 4)), replace=False):
        del dumps[str(rank)]


def _one(dumps: Dumps, rng: np.random.Generator) -> Any:
    return dumps[str(rng.choice(sorted(dumps)))]


def _age(dumps: Dumps, rng: np.random.Generator) -> None:
    """A dump of an hour ago, in which every group had done less."""
    dump, share = _one(dumps, rng), float(rng.uniform(0.3, 0.99))
    for status in dump["pg_status"].values():
        for name, value in status.items():
            status[name] = max(int(int(value) * share), -1)
    for entry in dump["entries"]:
        entry["collective_seq_id"] = int(entry["collective_seq_id"] * share)
        entry["time_created_ns"] -= HOUR


def _shift(dumps: Dumps, rng: np.random.Generator) -> None:
    """Counters of one rank that are wrong by a few, in one group or in all, its calls too or not."""
    dump, by = _one(dumps, rng), int(rng.integers(1, 20)) * int(rng.choice([-1, 1]))
    with_calls, groups = rng.random() < 0.5, sorted(dump["pg_status"])
    chosen = set(groups if rng.random() < 0.5 else [str(rng.choice(groups))]) if groups else set()
    for pg in chosen:
        for name, value in dump["pg_status"][pg].items():
            dump["pg_status"][pg][name] = int(value) + by
    for entry in dump["entries"]:
        if with_calls and str(entry["pg_id"]) in chosen:
            entry["collective_seq_id"] += by


def _drop_status(dumps: Dumps, rng: np.random.Generator) -> None:
    """Dumps without counters, as an older PyTorch writes them: of all ranks, or of one."""
    chosen = list(dumps.values()) if rng.random() < 0.5 else [_one(dumps, rng)]
    for dump in chosen:
        dump["pg_status"] = {}


def _shorten(dumps: Dumps, rng: np.random.Generator) -> None:
    """Short rings: only the newest calls, or none."""
    for dump in dumps.values():
        dump["entries"] = dump["entries"][len(dump["entries"]) - min(len(dump["entries"]), int(rng.integers(0, 6))) :]


def _exchange(dumps: Dumps, rng: np.random.Generator) -> None:
    """Two files under each other's name."""
    if len(dumps) > 1:
        a, b = (str(rank) for rank in rng.choice(sorted(dumps), 2, replace=False))
        dumps[a], dumps[b] = dumps[b], dumps[a]


def _forget_groups(dumps: Dumps, rng: np.random.Generator) -> None:
    """A dump that does not tell its groups."""
    _one(dumps, rng)["pg_config"] = {}


DAMAGES: tuple[Callable[[Dumps, np.random.Generator], None], ...] = (
    _lose, _age, _shift, _drop_status, _shorten, _exchange, _forget_groups,
)  # fmt: skip


def frozen(dumps: Dumps, faulty: list[int]) -> Dumps:
    """The same hang where the CPU of the second faulty rank ran ahead: it entered what its peers entered."""
    found = copy.deepcopy(dumps)
    mine, peers = found[str(faulty[1])], [one for rank, one in found.items() if int(rank) not in faulty]
    for pg, status in mine["pg_status"].items():
        same = [p["pg_status"][pg] for p in peers if p["pg_config"] == mine["pg_config"] and pg in p["pg_status"]]
        enqueued = max((int(one["last_enqueued_collective"]) for one in same), default=-1)
        status["last_enqueued_collective"] = max(int(status["last_enqueued_collective"]), enqueued)
    mine["entries"] = []
    return found


def _names(found: HangDiagnosis) -> set[int]:
    return {culprit.rank for culprit in found.culprits}


def main() -> None:
    """Print the table."""
    file, rng = target_file("damaged_dumps"), np.random.default_rng(11)
    files = sorted((DATA / "flight-recorder").glob("*.json.gz"))
    if not files:
        print(f"skipped: {DATA / 'flight-recorder'} is absent; set MAINSTAY_TEST_DATA")
        return
    sets = [json.loads(gzip.decompress(path.read_bytes())) for path in files]
    told = Counter[str]()
    wrong: list[str] = []
    for number in range(SETS):
        made = sets[number % len(sets)]
        dumps, truth = copy.deepcopy(made["dumps"]), set(made["fault_ranks"])
        damages = rng.choice(len(DAMAGES), int(rng.integers(1, 4)), replace=False)
        for damage in damages:
            DAMAGES[damage](dumps, rng)
        found = diagnose(dumps_of({"dumps": dumps}))
        named, certain = _names(found), found.sure and found.kind is not None
        told[f"{'certain' if certain else 'unsure'}, {'right' if named == truth else 'not right'}"] += 1
        if certain and named != truth:
            wrong.append(f"{number}: {sorted(named)} by {', '.join(DAMAGES[d].__name__[1:] for d in damages)}")
    whole = [diagnose(dumps_of(made)) for made in sets]
    right = sum(one.sure and _names(one) == set(made["fault_ranks"]) for one, made in zip(whole, sets, strict=True))
    ahead = [diagnose(dumps_of({"dumps": frozen(made["dumps"], made["fault_ranks"])})) for made in sets]
    both = sum(_names(one) == set(made["fault_ranks"]) for one, made in zip(ahead, sets, strict=True))
    note = "; ".join([*wrong[:5], *(f"{what}: {n}" for what, n in sorted(told.items()))])
    figures = (
        ("damaged dump sets: certain and wrong", len(wrong), 0, SETS, note),
        ("undamaged sets: certain and right", right, len(sets), len(sets), ""),
        ("a faulty rank entered what its peers entered: both faulty ranks named", both, len(sets), len(sets), ""),
    )
    rows = [
        Row(claim=claim, figure=got, unit="", target=str(target), holds=got == target, kind="replayed", n=n, note=more)
        for claim, got, target, n, more in figures
    ]
    publish("damaged_dumps", rows, file)


if __name__ == "__main__":
    main()
