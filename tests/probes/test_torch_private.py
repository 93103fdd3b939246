"""Every private name of torch that Mainstay needs is there, and one that is gone gives one clear line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from mainstay.probes import torch_private

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("probes", "detectors", "recovery", "service")
PRIVATE = re.compile(r"(?:import|from) torch[\w.]*\._\w|(?<![\"`.\w])(?:torch|dist)\.(?:\w+\.)*_[a-z]")


def test_this_torch_has_every_name() -> None:
    torch_private.check([name for name in vars(torch_private).values() if str(name).startswith("torch.")])


def test_a_missing_name_gives_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "9.9.0")
    with pytest.raises(torch_private.UnsupportedTorchError) as caught:
        torch_private.check(("torch.distributed._not_there",))
    assert str(caught.value) == (
        "Mainstay needs torch.distributed._not_there, which torch 9.9.0 does not have. "
        f"Use torch {torch_private.OLDEST} to {torch_private.NEWEST}."
    )


def test_a_replaced_gloo_class_is_put_back() -> None:
    original = torch.distributed.ProcessGroupGloo
    with torch_private.gloo_class(type("Other", (original,), {})):
        assert torch.distributed.distributed_c10d.ProcessGroupGloo is not original
    assert torch.distributed.distributed_c10d.ProcessGroupGloo is original


def test_no_other_module_uses_private_names() -> None:
    here = Path(torch_private.__file__).name
    sources = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if path.name != here)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sources
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if PRIVATE.search(line)
    ]
    assert not found


def test_the_oldest_version_is_stated_alike() -> None:
    assert f'"torch>={torch_private.OLDEST}"' in (ROOT / "pyproject.toml").read_text()
    assert f"torch=={torch_private.OLDEST}.0" in (ROOT / "Makefile").read_text()
