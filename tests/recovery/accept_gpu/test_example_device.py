"""The example trains on the GPU of its rank where torch sees GPUs, with kernels that repeat bit by bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mainstay.recovery.examples import tiny


def test_without_gpus_it_is_the_processor() -> None:
    assert tiny.options([]).device == torch.device("cpu")


def test_with_gpus_it_is_that_of_the_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    called: dict[str, Any] = {}
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: called.update(device=device))
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda mode: called.update(deterministic=mode))
    for name in ("enable_flash_sdp", "enable_mem_efficient_sdp", "enable_cudnn_sdp"):
        monkeypatch.setattr(torch.backends.cuda, name, lambda enabled, name=name: called.update({name: enabled}))
    assert tiny.options([]).device == torch.device("cuda", 3)
    assert called == {
        "device": torch.device("cuda", 3), "deterministic": True, "enable_flash_sdp": False,
        "enable_mem_efficient_sdp": False, "enable_cudnn_sdp": False,
    }  # fmt: skip
