"""One wrong bit in one matrix product of a training step: whether a fingerprint of the parameters finds it in time.

``python -m bench.sdc [--json FILE] [--quick]``: a minute. Real steps of torch on one thread (attention, feed-forward
layer, gradients by autograd, SGD; other data in every step). Every ``INTERVAL`` steps SHA-256 over all parameters and a
checksum that every step has added to are compared, exactly, with those of a replica that made the same steps in a
process of its own. SuperBench's deterministic mode (2026-03, #731) compares what is there every 100 steps; a parameter
that is wrong in its last bit may have been rounded back by then, which the checksum remembers: both ways are counted.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from bench.lib_flip import MANTISSA_BITS, FlipBit
from bench.report import RESULTS, Row, publish

STEPS = 10_000
FLIPS = 200
INTERVAL = 10
"""Steps between two checks."""
LATER = 3
"""Further checks that a flip is followed for, if the first does not see it."""
_WIDTH, _TOKENS, _BATCHES, _RATE = 16, 8, 256, 0.05

Weights = list[torch.Tensor]


class Training:
    """A seeded model and its data; ``step`` is a pure function of the weights and the step's number."""

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(7)
        self.first: Weights = [
            (torch.randn(_WIDTH, _WIDTH, generator=random) / _WIDTH**0.5).requires_grad_() for _ in range(4)
        ]
        self.tokens = torch.randn(_BATCHES, _TOKENS, _WIDTH, generator=random)
        self.targets = torch.randn(_BATCHES, _TOKENS, _WIDTH, generator=random)

    def start(self) -> Weights:
        return [weight.detach().clone().requires_grad_() for weight in self.first]

    def step(self, weights: Weights, number: int) -> None:
        """Forward, backward and update, in place."""
        query, key, value, forward = weights
        tokens = self.tokens[number % _BATCHES]
        scores = (tokens @ query) @ (tokens @ key).T / _WIDTH**0.5
        mixed = tokens + torch.softmax(scores, dim=-1) @ (tokens @ value)
        made = torch.nn.functional.gelu(mixed) @ forward
        loss = (made - self.targets[number % _BATCHES]).square().mean()
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.sub_(gradient, alpha=_RATE)

    def products(self) -> int:
        """Matrix products of one step, forward and backward."""
        counting = FlipBit()
        with counting:
            self.step(self.start(), 0)
        return counting.seen


def fingerprint(weights: Weights) -> str:
    """SHA-256 of all parameters' bytes."""
    digest = hashlib.sha256()
    for weight in weights:
        digest.update(weight.detach().numpy().tobytes())
    return digest.hexdigest()


class Checksum:
    """Of all parameters after each step since the last check: every value times its own odd number, modulo 2^64."""

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(11)
        self._factors = torch.randint(0, 1 << 62, (4, _WIDTH, _WIDTH), generator=random) * 2 + 1
        self.value = 0

    def add_weights(self, weights: Weights) -> None:
        bits = torch.stack([weight.detach().view(torch.int32) for weight in weights]).to(torch.int64)
        self.value = (self.value * 6364136223846793005 + int((bits * self._factors).sum())) % (1 << 64)


Print = tuple[str, int]
"""What is compared: the parameters' fingerprint, and the checksum of the steps up to it."""


@dataclass
class Chain:
    """What a run of clean steps left: a print each interval, and where it could continue from."""

    prints: list[Print] = field(default_factory=list)
    """After steps INTERVAL, 2 INTERVAL…"""
    kept: list[Weights] = field(default_factory=list)
    """Weights before steps 0, INTERVAL…"""
    checking: float = 0.0
    """Seconds of processor in fingerprints and checksums."""
    stepping: float = 0.0


def record(training: Training, steps: int) -> Chain:
    """Make ``steps`` clean steps."""
    chain, weights = Chain(), training.start()
    for first in range(0, steps, INTERVAL):
        chain.kept.append([weight.detach().clone() for weight in weights])
        checksum, begun, summing = Checksum(), time.process_time(), 0.0
        for number in range(first, first + INTERVAL):
            training.step(weights, number)
            summing -= time.process_time()
            checksum.add_weights(weights)
            summing += time.process_time()
        between = time.process_time()
        chain.prints.append((fingerprint(weights), checksum.value))
        chain.checking += time.process_time() - between + summing
        chain.stepping += between - begun - summing
    return chain


def replica(steps: int) -> list[Print]:
    """The prints of the same steps, made in another process."""
    command = [sys.executable, "-m", "bench.sdc", "--replica", str(steps)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [(str(digest), int(checksum)) for digest, checksum in json.loads(said)]


@dataclass(frozen=True)
class Flip:
    """One wrong bit, and what became of it."""

    bit: int
    changed: bool
    """Whether it changed any parameter in its own step."""
    delay: int | None
    """Steps until a check saw it; None: none of those looked at did."""
    remains: bool
    """Whether the parameters were still wrong at the first check: what a fingerprint alone can see."""


def inject(training: Training, chain: Chain, random: np.random.Generator, products: int) -> Flip:
    """Repeat the clean run from the last check before a random step, with one bit of one product flipped there."""
    step = int(random.integers(len(chain.prints) * INTERVAL))
    bit = int(random.integers(MANTISSA_BITS))
    product, element = int(random.integers(products)), int(random.integers(1 << 30))
    place = step // INTERVAL
    weights = [weight.clone().requires_grad_() for weight in chain.kept[place]]
    clean = [weight.clone().requires_grad_() for weight in chain.kept[place]]
    changed, remains = False, None
    for check in range(place, min(place + 1 + LATER, len(chain.prints))):
        checksum = Checksum()
        for number in range(check * INTERVAL, (check + 1) * INTERVAL):
            with FlipBit(product, element, bit) if number == step else contextlib.nullcontext():
                training.step(weights, number)
            checksum.add_weights(weights)
            if number <= step:
                training.step(clean, number)
            if number == step:
                changed = fingerprint(weights) != fingerprint(clean)
        digest, value = fingerprint(weights), checksum.value
        remains = digest != chain.prints[check][0] if remains is None else remains
        if (digest, value) != chain.prints[check]:
            return Flip(bit, changed, (check + 1) * INTERVAL - step, remains)
        if not changed:
            break
    return Flip(bit, changed, None, bool(remains))


def rows(training: Training, steps: int, flips: int) -> list[Row]:
    chain, other, products = record(training, steps), replica(steps), training.products()
    alarms = sum(mine != theirs for mine, theirs in zip(chain.prints, other, strict=True))
    random = np.random.default_rng(1)
    made = [inject(training, chain, random, products) for _ in range(flips)]
    real = [flip for flip in made if flip.changed]
    found = [flip for flip in real if flip.delay is not None and flip.delay <= INTERVAL]
    masked = Counter(flip.bit // 8 for flip in made if not flip.changed)
    drawn = Counter(flip.bit // 8 for flip in made)
    by_bit = ", ".join(f"bits {8 * b}-{min(8 * b + 7, 22)}: {masked[b]} of {drawn[b]}" for b in sorted(drawn))
    delay = float(np.mean([flip.delay for flip in found if flip.delay is not None])) if found else None
    return [
        Row(claim="wrong bits: false alarms over clean steps", figure=alarms, unit="", target="0", holds=alarms == 0,
            kind="live", n=steps, note=f"{len(chain.prints)} checks, one every {INTERVAL} steps, against a replica in"
            " another process; one thread, float32"),
        Row(claim="wrong bits: a flip that changed a parameter, found within one check interval",
            figure=len(found) / max(1, len(real)), unit="", target="1", holds=bool(real) and len(found) == len(real),
            kind="live", n=len(real), baseline="fingerprint of the parameters at the check, without the checksum:"
            f" {sum(flip.remains for flip in real)} of {len(real)}",
            note=f"one mantissa bit (0 to 22) of one of {products} products of a step,"
            " forward or backward, at random; one flip a run"),
        Row(claim="wrong bits: mean delay of finding", figure=delay, unit="steps", target=f"<= {INTERVAL}",
            holds=None if delay is None else delay <= INTERVAL, kind="live", n=len(found)),
        Row(claim="wrong bits: flips that changed no parameter", figure=1 - len(real) / len(made), unit="of flips",
            target="", holds=None, kind="live", n=len(made),
            note="lost in rounding or multiplied by nothing: every parameter had the right bits after the step, so"
            f" there was nothing to find ({by_bit})"),
        Row(claim="wrong bits: processor time of checks, by that of steps", figure=chain.checking / chain.stepping,
            unit="", target="", holds=None, kind="live", n=len(chain.prints),
            note=f"a model of {4 * _WIDTH**2} parameters and {1e6 * chain.stepping / steps:.0f} µs a step: the ratio is"
            " this model's"),
    ]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sdc")
    parser.add_argument("--json", type=Path, default=RESULTS / "sdc.json", metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps and flips")
    parser.add_argument("--replica", type=int, default=0, metavar="STEPS", help="only print fingerprints, as JSON")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    training = Training()
    if given.replica:
        print(json.dumps(record(training, given.replica).prints))
        return
    parts = 10 if given.quick else 1
    publish("sdc", rows(training, STEPS // parts, FLIPS // parts), given.json)


if __name__ == "__main__":
    main()
