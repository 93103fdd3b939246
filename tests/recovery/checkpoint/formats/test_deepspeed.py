"""DeepSpeed itself (CPU, gloo) loads what we wrote, and we what it wrote; both continue equally."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict

from mainstay.recovery.checkpoint import open_checkpoint
from mainstay.recovery.checkpoint.formats import WriteOptions, convert
from mainstay.recovery.checkpoint.logical import problems
from tests.recovery.checkpoint.formats.rank_processes import run_ranks

CASES = {"zero1": 1, "half2": 2, "zero3": 3}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="no extra 'formats' here")
@pytest.mark.timeout(900)
def test_deepspeed_and_mainstay_load_each_others(tmp_path: Path) -> None:
    run_ranks("deepspeed_ranks.py", tmp_path, "save")
    for name, stage in CASES.items():
        opened = open_checkpoint(tmp_path / name)
        assert (opened.format, opened.step) == ("deepspeed", 3)
        assert opened.values["deepspeed"]["note"] == 5
        assert not list(problems(opened))
        convert(tmp_path / name, tmp_path / f"{name}-dcp", "dcp", WriteOptions())
        source = tmp_path / f"{name}-dcp"
        convert(source, tmp_path / f"{name}-same", "deepspeed", WriteOptions(zero_stage=stage, dp=2))
        convert(source, tmp_path / f"{name}-universal", "deepspeed", WriteOptions())
    run_ranks("deepspeed_ranks.py", tmp_path, "load")
    for rank in range(2):
        saved, loaded = (json.loads((tmp_path / f"losses-{what}-{rank}.json").read_text()) for what in ("save", "load"))
        for name in CASES:
            assert loaded[f"{name}-same"] == saved[f"{name}-theirs"], name
            assert loaded[f"{name}-universal"] == saved[f"{name}-theirs"], name
    _continue_alone(tmp_path)


def _continue_alone(folder: Path) -> None:
    """One process with torch's own optimizer continues from the files of two ranks of ZeRO 3."""
    from tests.recovery.checkpoint.formats import deepspeed_ranks

    model = deepspeed_ranks.model_of()
    optimizer = deepspeed_ranks.optimizer_of(model, one_group=True)
    state = open_checkpoint(folder / "zero3").state_dict()
    model.load_state_dict(state["model"])
    set_optimizer_state_dict(model, optimizer, state["optimizer"])
    for step in range(3):
        losses = [model(deepspeed_ranks.data_of(3 + step, rank)).pow(2).mean() for rank in range(2)]
        for rank, loss in enumerate(losses):
            theirs = json.loads((folder / f"losses-save-{rank}.json").read_text())["zero3-theirs"][step]
            assert loss.item() == pytest.approx(theirs, rel=1e-5)
        (sum(losses) / 2).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # DeepSpeed's default
        optimizer.step()
        optimizer.zero_grad()
