"""Slow devices that share something become one finding; those that do not stay apart."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.validation.node_clusters import SlowGroup, _shared, group


def places(nodes: int = 32, gpus: int = 4) -> dict[str, str]:
    return {f"n{node}-{gpu}": f"n{node}" for node in range(nodes) for gpu in range(gpus)}


def test_a_slow_node_is_one_finding() -> None:
    slow = {f"n5-{gpu}" for gpu in range(4)}
    (one,) = group(slow, places())
    assert (one.node, len(one.devices), one.of) == ("n5", 4, 4)
    assert one.chance < 1e-4
    assert one.description == "4 of 4 devices of n5 are slow"


def test_most_of_a_node_is_enough_where_it_cannot_be_chance() -> None:
    (one,) = group({"n5-0", "n5-1", "n5-3"}, places())
    assert (one.node, one.of) == ("n5", 4)


def test_devices_far_apart_stay_apart() -> None:
    found = group({"n1-0", "n9-1", "n17-2"}, places())
    assert [one.devices for one in found] == [("n1-0",), ("n17-2",), ("n9-1",)]
    assert {one.chance for one in found} == {1.0}


def test_half_a_node_stays_apart() -> None:
    assert len(group({"n5-0", "n5-1"}, places())) == 2


def test_every_slow_device_is_in_exactly_one_group() -> None:
    where, random = places(), np.random.default_rng(0)
    for _ in range(50):
        slow = {str(name) for name in random.choice(sorted(where), size=int(random.integers(1, 40)), replace=False)}
        said = [device for one in group(slow, where) for device in one.devices]
        assert sorted(said) == sorted(slow)


def test_chance_rarely_makes_a_group() -> None:
    where, random = places(), np.random.default_rng(1)
    made = sum(
        any(len(one.devices) > 1 for one in group(set(random.choice(sorted(where), size=6, replace=False)), where))
        for _ in range(400)
    )
    assert made <= 4


def test_a_device_without_a_place_is_named() -> None:
    with pytest.raises(ValueError, match="no place is known of lost"):
        group({"lost"}, places())
    assert group(set(), places()) == ()


@pytest.mark.parametrize(
    ("slow", "members", "chance"),
    [
        ("12", "123", 0.4),
        ("12", "12", 2 / 15),
        ("12", "1234", None),
        ("1", "1", None),
        ("1", "12", None),
        ("123", "1234", 0.4),
    ],
)
def test_most_of_a_group_are_slow_and_two_at_least(slow: str, members: str, chance: float | None) -> None:
    """Of six devices in two groups: twice the chance of a draw with so many slow, as C(2,2) C(4,1) / C(6,3) = 0.2."""
    groups = {"a": set(members), "b": set("123456") - set(members)}
    assert list(_shared(set(slow), groups, 0.5)) == ([] if chance is None else [("a", pytest.approx(chance))])
    certain = chance is not None and set(members) <= set(slow)
    assert bool(list(_shared(set(slow), groups, 0.1))) is certain, "all are slow, by any chance"


@pytest.mark.parametrize(
    ("devices", "said"), [(("n/0",), "n/0 is slow"), (("n/0", "n/1"), "2 of 4 devices of n are slow")]
)
def test_a_group_in_words(devices: tuple[str, ...], said: str) -> None:
    assert SlowGroup(node="n", devices=devices, of=4, chance=0.1).description == said
