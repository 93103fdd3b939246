"""What is plain is read as pickle reads it; what would run code is refused by name."""

from __future__ import annotations

import os
import pickle

import pytest

from mainstay.detectors.hang.safe_pickle import PickleError, load

PLAIN = [
    {"a": [1, -2, 3_000_000_000, 2**70], "b": (None, True, False), "c": {"d": "ä" * 300, 1: 2.5}},
    [],
    (1,),
    (1, 2, 3, 4, 5),
    {"shared": [[1]] * 3},
    b"bytes" * 100,
    "text",
    [[0] * 2000],
]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("value", PLAIN, ids=str)
def test_plain_values_are_read_as_pickle_reads_them(value: object, protocol: int) -> None:
    if protocol < 3 and isinstance(value, bytes):
        pytest.skip("bytes of old protocols are built by a call of codecs.encode")
    assert load(pickle.dumps(value, protocol)) == value


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch /tmp/mainstay-was-here",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_calls_something_is_refused_by_name(protocol: int) -> None:
    with pytest.raises(PickleError, match=r"refused.*(posix|nt)[ .]system"):
        load(pickle.dumps({"entries": [Evil()]}, protocol))


def test_an_object_of_any_class_is_refused() -> None:
    with pytest.raises(PickleError, match="refused"):
        load(pickle.dumps({"when": PickleError("x")}))


@pytest.mark.parametrize(
    "data",
    [b"", b"x", b"\x80\x04", b".", b"\x80\x02]q\x00(K\x01e", b"h\x05.", b"e.", b"(K\x01d.", b"\x80\x02K\x01K\x02s."],
)
def test_a_broken_pickle_is_said_to_be_broken(data: bytes) -> None:
    with pytest.raises(PickleError, match=r"broken|refused"):
        load(data)


def test_what_is_duplicated_is_the_newest_value_and_what_is_refused_is_named_by_the_last_two() -> None:
    assert load(b"K\x01K\x022.") == 2
    assert load(b"](K\x07K\x082e.") == [7, 8, 8]
    with pytest.raises(PickleError, match=r"STACK_GLOBAL of 'os\.system' would run code"):
        load(b"\x8c\x01a\x8c\x02os\x8c\x06system\x93.")
