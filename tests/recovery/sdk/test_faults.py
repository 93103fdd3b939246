"""Faults that the examples can be told to have: what they are, when they hold, and that they are off."""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import pytest
import torch
from torch.distributed import ProcessGroup, Work

from mainstay.recovery.examples import tiny
from mainstay.recovery.examples.faults import VARIABLE, Fault, Faults, add_faults, parse


def test_off_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    before = (ProcessGroup.__dict__["recv"], Work.__dict__["wait"])
    faults = tiny.options([]).faults
    faults.enter(0, 0)
    faults.in_forward()
    faults.in_data()
    faults.before_exchange(torch.nn.Linear(1, 1))
    assert not faults.skips_exchange()
    assert (ProcessGroup.__dict__["recv"], Work.__dict__["wait"]) == before


def test_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "sleep:rank=2,step=5,until=9,ms=3; nan:rank=1,step=4")
    parser = argparse.ArgumentParser()
    add_faults(parser)
    assert parser.parse_args([]).faults.all == (
        Fault(kind="sleep", rank=2, step=5, until=9, ms=3.0),
        Fault(kind="nan", rank=1, step=4, until=5),
    )
    assert parser.parse_args(["--faults", ""]).faults.all == ()


@pytest.mark.parametrize(
    "text",
    [
        "sleep",
        "sleep:step=1",
        "doze:rank=1",
        "sleep:rank=1,often=2",
        "link:rank=1",
        "sleep:rank=1,peer=2",
        "nan:rank=x",
        "flip:rank=1,bit=23",
        "flip:rank=1,p=1.5",
    ],
)
def test_what_is_no_fault_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text)


def test_a_fault_holds_on_its_rank_in_its_steps() -> None:
    faults = parse("sleep:rank=1,step=2,until=4,ms=30")
    slept = []
    for rank, step in ((1, 1), (1, 2), (1, 3), (1, 4), (0, 2)):
        faults.enter(rank, step)
        begun = time.perf_counter()
        faults.in_forward()
        slept.append(time.perf_counter() - begun >= 0.03)
    assert slept == [False, True, True, False, False]


def test_a_fault_can_be_ended_from_outside(tmp_path: Path) -> None:
    there = tmp_path / "there"
    faults = parse(f"sleep:rank=0,ms=30,file={there}")
    faults.enter(0, 0)
    assert not faults.now
    there.touch()
    faults.enter(0, 1)
    assert [fault.kind for fault in faults.now] == ["sleep"]


def test_busy_uses_the_processor() -> None:
    faults = parse("busy:rank=0,ms=20")
    faults.enter(0, 0)
    begun = time.thread_time()
    faults.in_forward()
    assert time.thread_time() - begun >= 0.02


def test_a_nan_is_planted_once() -> None:
    model = torch.nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    faults = parse("nan:rank=0,step=3")
    found = []
    for step in (2, 3, 4):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        faults.enter(0, step)
        faults.before_exchange(model)
        found.append(any(math.isnan(float(p.grad.sum())) for p in model.parameters() if p.grad is not None))
    assert found == [False, True, False]


def test_a_skipped_exchange() -> None:
    faults = parse("mismatch:rank=0,step=3")
    skipped = []
    for step in (2, 3, 4):
        faults.enter(0, step)
        skipped.append(faults.skips_exchange())
    assert skipped == [False, True, False]
    assert Faults().all == ()


@pytest.mark.parametrize("kind", ["flip", "flip_update"])
def test_a_device_that_flips_bits_stays_with_its_local_rank(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(8, 8)

    def odd(faults: Faults, rank: int, step: int) -> int:
        """Steps of a hundred in which the gradient is another one, through the right entry point only."""
        count = 0
        for _ in range(100):
            model.weight.grad, model.bias.grad = torch.ones(8, 8), torch.ones(8)
            faults.enter(rank, step)
            (faults.after_exchange if kind == "flip" else faults.before_exchange)(model)
            assert bool((model.weight.grad == 1.0).all())
            (faults.before_exchange if kind == "flip" else faults.after_exchange)(model)
            count += int((model.weight.grad != 1.0).sum())
            assert bool((model.weight.grad >= 1.0).all())
            assert bool((model.weight.grad < 2.0).all())  # a mantissa: the size stays
        return count

    text = f"{kind}:rank=2,step=5,p=0.3,bit=20"
    monkeypatch.setenv("LOCAL_RANK", "2")
    faults = parse(text)
    assert odd(faults, 7, 4) == 0
    assert 10 < odd(faults, 7, 5) < 60
    assert odd(faults, 0, 1) > 0  # steps that are made again do not repair it
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert odd(parse(text), 2, 5) == 0  # whoever has another device is rid of it
