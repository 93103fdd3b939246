"""What stand-ins say of a first step is what a real one makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from mainstay.recovery.memory.first_step import first_step_taken
from mainstay.recovery.memory.optimizer import OptimizerState

KINDS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "adam": (torch.optim.Adam, {}),
    "amsgrad": (torch.optim.Adam, {"lr": torch.tensor(1e-2), "amsgrad": True}),
    "adamw": (torch.optim.AdamW, {}),
    "adamw in one kernel": (torch.optim.AdamW, {"fused": True}),
    "adamw of lists": (torch.optim.AdamW, {"foreach": True}),
    "adamax": (torch.optim.Adamax, {}),
    "nadam": (torch.optim.NAdam, {}),
    "radam": (torch.optim.RAdam, {}),
    "adadelta": (torch.optim.Adadelta, {}),
    "adafactor": (torch.optim.Adafactor, {}),
    "asgd": (torch.optim.ASGD, {}),
    "rprop": (torch.optim.Rprop, {}),
    "rmsprop": (torch.optim.RMSprop, {"momentum": 0.5, "centered": True}),
    "sparse": (torch.optim.SparseAdam, {}),
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
}


def parameters() -> list[torch.nn.Parameter]:
    torch.manual_seed(3)
    turned = torch.randn(4, 6).t()  # not contiguous on purpose
    frozen = torch.nn.Parameter(torch.randn(2), requires_grad=False)
    return [torch.nn.Parameter(turned), torch.nn.Parameter(torch.randn(5)), frozen]


def described(optimizer: torch.optim.Optimizer, params: list[torch.nn.Parameter]) -> dict[str, Any]:
    names = {f"p{number}": parameter for number, parameter in enumerate(params)}
    state = OptimizerState(optimizer, names)
    return {name: (made.dtype, made.shape, made.stride(), state._devices[name]) for name, made in state._made.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_stand_ins_and_a_real_step_say_the_same(kind: str) -> None:
    made_by, options = KINDS[kind]
    own = type("Own", (made_by,), {"__module__": __name__})  # third-party code: takes a real step
    params, others = parameters(), parameters()
    told = described(made_by(params, **options), params)  # type: ignore[call-arg]
    assert told == described(own(others, **options), others)
    assert all(one.equal(other) and one.grad is None for one, other in zip(params, others, strict=True))


def test_nothing_is_computed_and_nothing_kept() -> None:
    params = parameters()
    before = [p.detach().clone() for p in params]
    optimizer = torch.optim.AdamW(params)
    with first_step_taken(optimizer):
        states = [optimizer.state[p] for p in params[:2]]
        assert all(state["exp_avg"].is_meta for state in states)
        assert params[2] not in optimizer.state
    assert not optimizer.state
    assert [p.grad for p in params] == [None] * 3
    assert all(one.equal(other) for one, other in zip(params, before, strict=True))
    assert optimizer.param_groups[0]["params"] == params


class NeedsValues(torch.optim.SGD):
    """Of torch's kind by its module, and yet it looks at numbers."""

    __module__ = "torch.optim.sgd"

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        del closure
        for group in self.param_groups:
            for parameter in self._of(group):
                if parameter.grad is not None and float(parameter.grad.sum()) == 0.0:
                    group["lr"] = 0.5
                    self.state[parameter]["seen"] = torch.ones(3)
                    parameter.data.add_(1.0)

    def _of(self, group: dict[str, Any]) -> Iterator[torch.nn.Parameter]:
        yield from group["params"]


def test_who_needs_numbers_gets_them_and_leaves_no_trace() -> None:
    params = parameters()
    before = [p.detach().clone() for p in params]
    optimizer = NeedsValues(params, lr=0.1)
    with first_step_taken(optimizer):
        assert [p in optimizer.state for p in params] == [True, True, False]
        assert not optimizer.state[params[0]]["seen"].is_meta
    assert not optimizer.state
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert optimizer.param_groups[0]["params"] == params
    assert all(one.equal(other) and one.grad is None for one, other in zip(params, before, strict=True))
