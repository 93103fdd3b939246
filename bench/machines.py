"""Scores of machines with many signals, chosen without the machine that they are reported on.

``python -m bench.machines [--data DIR] [--json FILE]``: the shared four machines of SMD and six of ASD (the folder is
also looked for in ``MAINSTAY_TEST_DATA``). Models and thresholds see the training part alone, a sample is scored from
its past alone; no point adjustment, no threshold chosen with hindsight.

Everything else (which score, how many alarms are asked for) is chosen on the other nine machines with their labels, and
reported on the one left out; and across the sets: chosen on the one, reported on the other. For ranks the mean VUS-PR
decides, and an ensemble has to beat the best single score by ``MARGIN``. For alarms: most events found among what stays
within ``ALLOWED`` false alarms a machine-day. The list of candidates was made in sight of these ten machines (some
forty scores, two smoothings, two calibrations), so what is left out was not unseen by who made it.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.lib_events import COOL_DOWN, Verdict, hit_rate, judge
from bench.lib_machine_scores import (
    SIMPLE,
    VIEWS,
    Machine,
    Scores,
    logged,
    mean_rank,
    online,
    rarest,
    scores_of,
)
from bench.lib_multivariate import MachineModel, status
from bench.lib_vus import ranges_of, vus_pr
from bench.report import RESULTS, Row, publish
from mainstay.detectors.base import Floats
from mainstay.detectors.statistics.alarm_budget import AlarmBudget
from mainstay.detectors.statistics.spot import tail

DATA = Path(os.environ.get("MAINSTAY_TEST_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
WINDOW = 100
"""Widest margin of VUS-PR, as in the published tables."""
A_DAY = {"smd": 1440, "asd": 288}
BUDGETS = (0.1, 0.25, 0.5, 1.0)
ALLOWED = 0.5
MARGIN = 0.02
SHARE = 1.5
"""HitRate@150 %."""


def machines(folder: Path) -> Iterator[Machine]:
    """The machines of a set, in order of name."""
    for file in sorted(folder.glob("*.npz")):
        with np.load(file, allow_pickle=False) as data:
            part = {key: data[key] for key in data.files}
        yield Machine(
            name=file.stem,
            day=A_DAY[folder.name],
            train=_values(part, "train"),
            test=_values(part, "test"),
            labels=part["test_label"].astype(np.bool_),
            culprits=[(s, e + 1, [c - 1 for c in who]) for s, e, who in json.loads(str(part["interpretation"]))],
        )


def _values(part: dict[str, npt.NDArray[Any]], key: str) -> Floats:
    """[T, M] of either data set; SMD stands in millionths."""
    values: Floats = part[f"{key}_e6"] / 1e6 if f"{key}_e6" in part else part[key].astype(np.float64)
    return values


def within_budget(scores: Scores, rate: float, gain: float) -> npt.NDArray[np.intp]:
    """Samples at which an alarm is raised, as by ``alarms``; with ``gain`` 0 the threshold is that of the tail."""
    logs = tail(status(scores.healthy)).log_rate(status(scores.test))
    budget = AlarmBudget(rate=rate, gain=gain)
    raised: list[int] = []
    before = 0
    for at in np.flatnonzero(logs <= np.log(rate)).tolist():
        budget.pass_samples(at - before)
        before = at
        if logs[at] <= budget.log_rate and not (raised and at - raised[-1] < COOL_DOWN):
            raised.append(at)
            budget.note_alarm()
    return np.array(raised, np.intp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one candidate's alarms were worth on one machine."""

    verdict: Verdict
    days: float
    raised: int

    @property
    def false_a_day(self) -> float:
        return self.verdict.false / self.days


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All candidates on one machine."""

    name: str
    day: int
    """Samples a day: each set has its own."""
    vus: dict[str, float]
    alarms: dict[tuple[str, float, float], Outcome]
    """By candidate, budget, and gain."""


GAIN = AlarmBudget(rate=1.0).gain


def measure(machine: Machine, live: dict[str, Scores]) -> Measured:
    single = scores_of(machine)
    events = ranges_of(machine.labels)
    parts = [single[name] for name in VIEWS]
    ranks = {name: scores.test for name, scores in single.items()}
    ranks |= {f"{name}, smoothed": logged(single[name], 15.0).test for name in (*SIMPLE[1:], *VIEWS)}
    ranks |= {"two views": mean_rank(parts), "live": rarest(list(live.values())).test}
    spoken = {name: rarest([scores]) for name, scores in single.items()}
    spoken |= {"rarest of unrest and Mahalanobis LW": rarest([single["unrest"], single["Mahalanobis LW"]])}
    spoken |= {"rarest of two views": rarest(parts), "live": rarest(list(live.values()))}
    outcomes = {}
    for name, scores in spoken.items():
        for budget in BUDGETS:
            for gain in (0.0, GAIN):
                raised = within_budget(scores, budget / machine.day, gain)
                outcomes[name, budget, gain] = Outcome(
                    verdict=judge(raised, events), days=machine.days, raised=len(raised)
                )
    vus = {name: vus_pr(machine.labels, rank, WINDOW) for name, rank in ranks.items()}
    return Measured(name=machine.name, day=machine.day, vus=vus, alarms=outcomes)


def recall(outcomes: Sequence[Outcome]) -> float:
    return sum(len(o.verdict.delays) for o in outcomes) / sum(o.verdict.events for o in outcomes)


def false_a_day(outcomes: Sequence[Outcome]) -> float:
    return float(np.mean([o.false_a_day for o in outcomes]))


ENSEMBLES = frozenset({"two views", "six views", "live"})


def evenly(others: Sequence[Measured], value: Callable[[list[Measured]], float]) -> float:
    """Mean over the sets, so that neither decides by its number of machines."""
    return float(np.mean([value([m for m in others if m.day == day]) for day in sorted({m.day for m in others})]))


def best_rank(others: Sequence[Measured]) -> str:
    """By the mean VUS-PR; an ensemble only where it is better by the margin."""
    mean = {
        name: evenly(others, lambda group, name=name: float(np.mean([m.vus[name] for m in group])))  # type: ignore[misc]
        for name in others[0].vus
    }
    return max(mean, key=lambda name: mean[name] - (MARGIN if name in ENSEMBLES else 0.0))


def best_alarms(others: Sequence[Measured], budgets: Iterable[float] = BUDGETS) -> tuple[str, float, float]:
    """Candidate, budget and gain that find the most events within the false alarms allowed."""
    scores = {}
    for key in others[0].alarms:
        if key[1] in budgets and key[2]:
            found, false = (
                evenly(others, lambda group, of=of, key=key: of([m.alarms[key] for m in group]))  # type: ignore[misc]
                for of in (recall, false_a_day)
            )
            if false <= ALLOWED:
                scores[key] = found, -false
    return max(scores, key=lambda key: scores[key])


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Who is reported, and what was chosen on whom."""

    out: Measured
    others: tuple[Measured, ...]


def left_out(group: Sequence[Measured], all_of_them: Sequence[Measured]) -> list[Split]:
    return [Split(out=m, others=tuple(o for o in all_of_them if o is not m)) for m in group]


def across(group: Sequence[Measured], other: Sequence[Measured]) -> list[Split]:
    return [Split(out=m, others=tuple(other)) for m in group]


def rank_row(name: str, splits: list[Split]) -> Row:
    chosen = [best_rank(s.others) for s in splits]
    figure = float(np.mean([s.out.vus[c] for s, c in zip(splits, chosen, strict=True)]))
    means = {n: float(np.mean([s.out.vus[n] for s in splits])) for n in splits[0].out.vus}
    simple = max(means[n] for n in means if n.removesuffix(", smoothed") in SIMPLE)
    return Row(claim=f"{name}: VUS-PR", figure=figure, unit="", target=f"> {simple:.3f}, the best simple score",
        holds=figure > simple, kind="replayed", n=len(splits),
        baseline="; ".join(f"{n} {v:.3f}" for n, v in means.items()),
        note="; ".join(f"{s.out.name}: {c} {s.out.vus[c]:.3f}"
                       for s, c in zip(splits, chosen, strict=True)))  # fmt: skip


def alarm_rows(name: str, splits: list[Split]) -> list[Row]:
    chosen = [best_alarms(s.others) for s in splits]
    outcomes = [s.out.alarms[c] for s, c in zip(splits, chosen, strict=True)]
    found, false = recall(outcomes), false_a_day(outcomes)
    delays = np.array([float(d) for o in outcomes for d in o.verdict.delays] or [np.nan])
    rivals = "; ".join(
        f"{n} {recall(made):.2f} at {false_a_day(made):.2f}"
        for n in dict.fromkeys(key[0] for key in splits[0].out.alarms)
        for made in [[s.out.alarms[n, 1.0, GAIN] for s in splits]]
    )
    each = "; ".join(
        f"{s.out.name}: {c[0]}, {c[1]:g} asked: {len(o.verdict.delays)}/{o.verdict.events} at {o.false_a_day:.2f}"
        for s, c, o in zip(splits, chosen, outcomes, strict=True)
    )
    return [
        Row(claim=f"{name}: events found", figure=found, unit="", target=">= 0.50", holds=found >= 0.5,
            kind="replayed", n=sum(o.verdict.events for o in outcomes), baseline=f"asked for 1 a day: {rivals}",
            note=f"{each}; median delay {np.median(delays):.0f} samples"),
        Row(claim=f"{name}: false alarms a machine-day", figure=false, unit="", target="<= 0.5", holds=false <= 0.5,
            kind="replayed", n=len(splits), note=f"worst machine {max(o.false_a_day for o in outcomes):.2f}"),
        *(budget_row(name, splits, budget) for budget in BUDGETS),
    ]  # fmt: skip


def budget_row(name: str, splits: list[Split], budget: float) -> Row:
    """A stated budget of alarms, with the score that was chosen for it on the others."""
    chosen = [best_alarms(s.others, (budget,)) for s in splits]
    steered = [s.out.alarms[c] for s, c in zip(splits, chosen, strict=True)]
    fixed = [s.out.alarms[c[0], budget, 0.0] for s, c in zip(splits, chosen, strict=True)]
    false = false_a_day(steered)
    texts = [
        f"{kind} {false_a_day(made):.2f} (worst machine {max(o.false_a_day for o in made):.2f}), all alarms "
        f"{np.mean([o.raised / o.days for o in made]):.2f}, events found {recall(made):.2f}"
        for kind, made in (("adaptive", steered), ("threshold of the training part", fixed))
    ]
    return Row(claim=f"{name}: false alarms a machine-day, {budget:g} asked", figure=false, unit="",
        target=f"<= {1.5 * budget:g}", holds=false <= 1.5 * budget, kind="replayed", n=len(splits),
        note="; ".join(texts))  # fmt: skip


def culprit_rows(data: Iterable[Machine]) -> list[Row]:
    rates = []
    for machine in data:
        shares = MachineModel().fit(machine.train).contributions(machine.test)
        rates += [hit_rate(shares[start:stop], who, SHARE) for start, stop, who in machine.culprits]
    figure = float(np.mean(rates))
    return [Row(claim="SMD: HitRate@150 %", figure=figure, unit="", target=">= 0.80", holds=figure >= 0.8,
        kind="replayed", n=len(rates))]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.machines")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--json", type=Path, default=RESULTS / "machines.json")
    given = parser.parse_args()
    data = {name: list(machines(given.data / name)) for name in A_DAY}
    for name, found in data.items():
        if not found:
            raise SystemExit(f"no machines in {given.data / name}: name the data's folder with --data")
    made = {
        name: [measure(m, live) for m, live in zip(found, online(found), strict=True)] for name, found in data.items()
    }
    everyone = [m for group in made.values() for m in group]
    rows = []
    for name, group in made.items():
        splits = left_out(group, everyone)
        title = f"{name.upper()}, each machine left out"
        rows += [rank_row(title, splits), *alarm_rows(title, splits)]
    for name, group in made.items():
        other = next(o for o in made if o != name)
        splits = across(group, made[other])
        title = f"{name.upper()}, chosen on {other.upper()}"
        rows += [rank_row(title, splits), *alarm_rows(title, splits)]
    publish("machines", [*rows, *culprit_rows(data["smd"])], given.json)


if __name__ == "__main__":
    main()
