"""The final parameters that ranks of the examples wrote, beside those of a run to which nothing happened."""

from __future__ import annotations

from pathlib import Path


def assert_same_bits(one: Path, undisturbed: Path, ranks: int) -> None:
    """Both directories hold a file of each of ``ranks`` ranks, and equal ones."""
    names = sorted(f"rank-{rank}.npz" for rank in range(ranks))
    assert sorted(path.name for path in undisturbed.iterdir()) == names
    assert [name for name in names if (one / name).read_bytes() != (undisturbed / name).read_bytes()] == []
