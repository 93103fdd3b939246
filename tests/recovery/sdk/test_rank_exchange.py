"""What ranks tell one another, of any length."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from mainstay.recovery.sdk import rank_exchange
from mainstay.recovery.sdk.rank_exchange import tell_all
from tests.recovery.sdk.ranks import run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.processes]


def exchange_words(rank: int, most: int) -> list[list[str]] | str:
    rank_exchange.MAX_BYTES = most
    try:
        return tell_all(["é" * rank] * rank, dist.group.WORLD, "cpu")
    except ValueError as error:
        return str(error)


def test_every_rank_hears_what_each_says() -> None:
    assert run_ranks(exchange_words, 3, 100) == [[[], ["é"], ["éé", "éé"]]] * 3


def test_no_rank_waits_for_one_that_tells_too_much() -> None:
    assert run_ranks(exchange_words, 3, 8) == ["a rank tells 11 bytes, more than 8"] * 3
