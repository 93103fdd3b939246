"""A rank never begins from the start with tensors that have changed since."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mainstay.recovery.protocol.worker_messages import Regroup, Resumed
from mainstay.recovery.sdk.protected import ProtectedRun


@pytest.mark.parametrize(("live", "ok"), [(0, True), (1, False), (None, False)])
def test_an_order_to_begin_from_the_start_is_refused_once_tensors_have_changed(live: int | None, ok: bool) -> None:
    sent: list[Resumed] = []
    saved: list[int] = []
    run: Any = object.__new__(ProtectedRun)
    run._live = live
    run._link = SimpleNamespace(send=sent.append)
    run._meter = SimpleNamespace(restart=lambda: None, training=False)
    run._protection = SimpleNamespace(save=saved.append)
    order = Regroup(generation=2, store_host="127.0.0.1", store_port=1)
    assert run._resume(order) is ok
    (answer,) = sent
    assert (answer.generation, answer.epoch, answer.ok) == (2, 0, ok)
    assert saved == ([0] if ok else [])
    if not ok:
        assert answer.reason == f"its tensors are of step {live}, not of the start"
