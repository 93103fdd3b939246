"""Norms, digests and how often they are taken."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from mainstay.recovery.sdk.numerics import device_digest, fold, is_sendable, norm_of, tensors_digest, whole_digest


def test_norm_over_several_types() -> None:
    tensors = [torch.full((3,), 2.0), torch.full((4,), 1.0, dtype=torch.float64)]
    norm = norm_of(tensors)
    assert norm is not None
    assert float(norm) == pytest.approx(4.0)
    assert norm_of([]) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8])
def test_one_flipped_bit_changes_a_digest(dtype: torch.dtype) -> None:
    tensors = [torch.ones(7, dtype=dtype), torch.arange(12).reshape(3, 4).T.to(dtype)]
    before = device_digest(tensors)
    assert before is not None
    assert before == device_digest([tensor.clone() for tensor in tensors])
    raw = tensors[0].view(torch.uint8)
    raw[0] ^= 1
    assert before != device_digest(tensors)
    assert device_digest([]) is None


def test_what_is_sharded_has_no_digest_to_compare() -> None:
    """The ranks' parts differ, and rightly: replicas that are compared by them would never agree."""
    whole = [torch.arange(6.0), torch.ones(2)]
    assert whole_digest(iter(whole)) == tensors_digest(whole)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        part = distribute_tensor(torch.ones(4), init_device_mesh("cpu", (1,)), [Shard(0)])
        assert whole_digest([whole[0], part]) is None
    finally:
        dist.destroy_process_group()


@given(st.integers(-(2**63), 2**64 - 1))
def test_a_folded_digest_is_exact_as_float32(digest: int) -> None:
    value = fold(digest)
    assert 0 <= value < 2**24
    assert torch.tensor(value, dtype=torch.float32).item() == value


def test_what_can_travel() -> None:
    assert is_sendable(0.0)
    assert not any(is_sendable(value) for value in (float("nan"), float("inf"), 1e39))
