"""NaN, spikes and a job's own pace: what is reported, after how many steps, and how often for nothing.

Real Megatron loss curves and step times are replayed (``MAINSTAY_TEST_DATA`` names the folder that holds step-times);
faults are injected into them. Digests and gradient norms are simulated, as no public run has them. These curves were
seen while the detectors were made: the jump that counts as a spike was lowered from five to four times the running
level after injections into them were missed, and that a lasting new pace is no false alarm was written after one of
them had one. So the figures are in-sample; other curves may say otherwise.
``python -m bench.numeric_anomalies [--json FILE]``
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.lib_mesh import regular
from bench.lib_pace import pace_of
from bench.report import Row, publish, target_file
from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Entity, Finding, FindingKind
from mainstay.detectors.job.numeric_anomalies import NumericAnomalyDetector
from mainstay.detectors.job.slowdown import SlowdownDetector

SEED = 3
CURVES = ("bert_h100", "gpt3_15b_a100lts", "gpt3_15b_h100", "mixtral8x7b_h100_dev")
INJECTIONS = 25
"""A curve; a hundred in all."""
BEFORE = 100
"""Steps of the curve that the detector sees before an injection."""
UNICRON = 1.1

Floats = npt.NDArray[np.float64]


def data_folder() -> Path:
    given = os.environ.get("MAINSTAY_TEST_DATA")
    return Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data"


def curve(name: str, key: str) -> Floats:
    with np.load(data_folder() / "step-times" / f"{name}.npz") as data:
        values = data[key].astype(np.float64)
    return np.asarray(values[np.isfinite(values)], np.float64)


def spacing(name: str) -> float:
    """Steps between two logged step times."""
    with np.load(data_folder() / "step-times" / f"{name}.npz") as data:
        steps = data["iteration_time__step"][np.isfinite(data["iteration_time"])]
    return float(np.median(np.diff(steps)))


def job(loss: Floats, seed: int, *, dp: int = 8, missing: float = 0.05) -> Samples:
    """A job of ``dp`` replicas around one loss curve: norms with 15 % noise, digests every tenth step."""
    rng = np.random.default_rng([SEED, seed])
    steps = len(loss)
    mesh = regular("job", dp=dp, ranks_per_node=4)
    x = np.full((steps, 5, dp), np.nan)
    x[:, 0], x[:, 4] = 0.0, 0.0
    x[:, 1] = loss[:, None]
    x[:, 2] = np.exp(rng.normal(0.0, 0.15, (steps, dp)))
    x[::10, 3] = rng.integers(0, 2**24, (len(x[::10]), 1))
    x = np.where(rng.random((steps, 1, dp)) < missing, np.nan, x)  # a rank's whole record is missing
    return Samples(
        entities=tuple(Entity(job="job", rank=r, node=mesh.nodes[r]) for r in range(dp)),
        groups=("",) * dp,
        signals=NumericAnomalyDetector.signals,
        t=1.7e9 + np.arange(steps, dtype=np.float64),
        x=x,
        mesh=mesh,
        steps=np.arange(steps),
    )


def first(found: list[Finding], kind: FindingKind) -> tuple[int, Finding] | None:
    """Step of the first finding of a kind, counted from 1 at the injection."""
    said = next((f for f in found if f.kind is kind and f.active), None)
    return None if said is None else (round(said.time - 1.7e9) - BEFORE + 1, said)


def nan_rows(losses: dict[str, Floats]) -> list[Row]:
    rng = np.random.default_rng(SEED)
    in_one, right, count = 0, 0, 0
    for loss in losses.values():
        for _ in range(INJECTIONS):
            at, rank = int(rng.integers(BEFORE, len(loss) - 10)), int(rng.integers(8))
            data = job(loss[at - BEFORE : at + 10], count)
            x = data.x.copy()
            x[BEFORE, 0, rank] = np.where(np.isnan(x[BEFORE, 0, rank]), np.nan, 1.0)
            x[BEFORE + 1 :, 0] = np.where(np.isnan(x[BEFORE + 1 :, 0]), np.nan, 1.0)
            said = first(NumericAnomalyDetector().update(replace(data, x=x)), FindingKind.NAN)
            # Where its own record of the step is the one that is missing, the next step is the first that can tell.
            late = 2 if np.isnan(x[BEFORE, 0, rank]) else 1
            in_one += said is not None and said[0] <= late
            right += said is not None and said[1].entity.rank == rank
            count += 1
    return [
        Row(claim="NaN → finding in the first step that a rank reports it", figure=in_one / count, unit="",
            target="1 step", holds=in_one == count, kind="replayed", n=count, note="5 % of records missing"),
        Row(claim="NaN: first rank named", figure=right / count, unit="", target="", holds=None, kind="replayed",
            n=count, note="the rest: its record of that step was missing beside others'"),
    ]  # fmt: skip


def spike_rows(losses: dict[str, Floats]) -> list[Row]:
    rng, rows, count = np.random.default_rng(SEED), [], 0
    for place, words in ((1, "loss"), (2, "gradient norms")):
        in_one = count = 0
        for loss in losses.values():
            for _ in range(INJECTIONS):
                at = int(rng.integers(BEFORE, len(loss) - 10))
                data = job(loss[at - BEFORE : at + 10], count)
                x = data.x.copy()
                x[BEFORE, place] *= 5.0
                said = first(NumericAnomalyDetector().update(replace(data, x=x)), FindingKind.LOSS_SPIKE)
                in_one += said is not None and said[0] == 1
                count += 1
        rows.append(Row(claim=f"{words} × 5 → finding in 1 step", figure=in_one / count, unit="", target="1 step",
                        holds=in_one == count, kind="replayed", n=count))  # fmt: skip
    steps, alarms, worst = 0, 0, ""
    for name, loss in losses.items():
        false = sum(f.active for f in NumericAnomalyDetector().update(job(loss, 0)))
        steps, alarms, worst = steps + len(loss), alarms + false, f"{worst} {name} {false}"
    rate = alarms / steps * 1e4
    rows.append(Row(claim="false findings per 10,000 steps of real loss curves", figure=rate, unit="", target="<= 1",
                    holds=rate <= 1, kind="replayed", n=steps, note=f"gradient norms simulated;{worst}"))  # fmt: skip
    return rows


def digest_row(losses: dict[str, Floats]) -> Row:
    rng = np.random.default_rng(SEED)
    loss, right, count = losses["gpt3_15b_h100"], 0, 4 * INJECTIONS
    for i in range(count):
        at, rank = int(rng.integers(BEFORE, len(loss) - 10)), int(rng.integers(8))
        data = job(loss[at - BEFORE : at + 10], i, missing=0.0)
        x = data.x.copy()
        x[BEFORE, 3, rank] = (x[BEFORE, 3, rank] + 1) % 2**24
        said = first(NumericAnomalyDetector().update(replace(data, x=x)), FindingKind.SDC_SUSPECT)
        right += said is not None and said[0] == 1 and said[1].entity.rank == rank
    return Row(claim="replica with another digest named at that step", figure=right / count, unit="", target="",
               holds=None, kind="simulated", n=count, note="8 replicas")  # fmt: skip


def pace_rows(times: dict[str, Floats]) -> list[Row]:
    found: dict[str, list[Finding]] = {}
    peer, days, stable_alarms, note = 0, 0.0, 0, ""
    for name, seconds in times.items():
        found[name] = [f for f in SlowdownDetector().update(pace_of(seconds)) if f.active]
        mean = np.cumsum(seconds)[:-1] / np.arange(1, len(seconds))
        peer += int(np.count_nonzero(seconds[20:] > UNICRON * mean[19:]))
        days += float(seconds.sum()) * spacing(name) / 86_400
        note += f" {name} {len(found[name])};"
        stretch = any(lasting(seconds, f) for f in found[name])
        stable_alarms += 0 if stretch else len(found[name])
    rate = stable_alarms / days
    total = sum(map(len, found.values()))
    return [
        Row(claim="false job slowdowns a day of real step times", figure=rate, unit="/day", target="<= 0.1",
            holds=rate <= 0.1, kind="replayed", n=sum(map(len, times.values())),
            baseline=f"one step above 1.1 x running mean (Unicron): {peer / days:.3g} /day",
            note=f"{days:.2f} days if unlogged steps equal logged ones; findings:{note} {total - stable_alarms} "
            "in a real stretch of 20 samples or more that are 5 % slower, which counts as found"),
        *injected(times),
    ]  # fmt: skip


def lasting(seconds: Floats, finding: Finding) -> bool:
    """Whether a finding stands at a real, lasting change: 20 samples before and after differ by 5 % in the median."""
    at = int(finding.evidence.numbers["since_step"])
    return float(np.median(seconds[at + 1 : at + 21]) / np.median(seconds[max(0, at - 20) : at])) >= 1.05


def injected(times: dict[str, Floats]) -> list[Row]:
    rng, rows = np.random.default_rng(SEED), []
    for by in (1.1, 1.2):
        delays, missed, peer_hits, count = [], 0, 0, 0
        for seconds in times.values():
            for _ in range(INJECTIONS):
                at = int(rng.integers(60, len(seconds) - 40))
                start = max(0, at - BEFORE)
                part = seconds[start : at + 40].copy()
                if any(f.active for f in SlowdownDetector().update(pace_of(part))):
                    continue  # a stretch that is slow already: nothing to be added to
                part[at - start :] *= by
                data = pace_of(part)
                said = [f for f in SlowdownDetector().update(data) if f.active]
                steps = [int(np.searchsorted(data.t, f.time)) - (at - start) + 1 for f in said]
                delays.append(float(steps[0]) if steps else np.inf)
                missed += not steps
                level = np.cumsum(seconds)[at - 1] / at
                peer_hits += bool((part[at - start : at - start + 10] > UNICRON * level).any())
                count += 1
        p95 = float(np.quantile(delays, 0.95, method="inverted_cdf"))
        rows.append(Row(
            claim=f"job {by - 1:.0%} slower on real step times → finding, p95", figure=p95, unit="samples",
            target="<= 10", holds=p95 <= 10, kind="replayed", n=count,
            baseline=f"Unicron's rule fires within 10 in {peer_hits / count:.1%}",
            note=f"median {np.median(delays):.0f}, missed {missed}"))  # fmt: skip
    return rows


def main() -> None:
    file = target_file("numeric_anomalies")
    losses = {name: curve(name, "lm_loss") for name in CURVES}
    times = {name: curve(name, "iteration_time") for name in CURVES}
    publish("numeric_anomalies", [*nan_rows(losses), *spike_rows(losses), digest_row(losses), *pace_rows(times)], file)


if __name__ == "__main__":
    main()
