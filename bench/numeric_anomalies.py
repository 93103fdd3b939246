"""NaN and spikes: what is reported, after how many steps, and how often for nothing.

Real Megatron loss curves are replayed (``MAINSTAY_TEST_DATA`` names the folder that holds step-times); faults are
injected into them. Digests and gradient norms are simulated, as no public run has them. These curves were seen while
the detectors were made: the jump that counts as a spike was lowered from five to four times the running level after
injections into them were missed. So the figures are in-sample; other curves may say otherwise.
``python -m bench.numeric_anomalies [--json FILE]``
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from bench.lib_pace import CURVES, curve
from bench.report import Row, publish, target_file
from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Entity, Finding, FindingKind
from mainstay.detectors.job.mesh import regular
from mainstay.detectors.job.numeric_anomalies import NumericAnomalyDetector

SEED = 3
INJECTIONS = 25
"""A curve; a hundred in all."""
BEFORE = 100
"""Steps of the curve that the detector sees before an injection."""

Floats = npt.NDArray[np.float64]


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


def main() -> None:
    file = target_file("numeric_anomalies")
    losses = {name: curve(name, "lm_loss") for name in CURVES}
    publish("numeric_anomalies", [*nan_rows(losses), *spike_rows(losses), digest_row(losses)], file)


if __name__ == "__main__":
    main()
