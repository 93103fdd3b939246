"""The frame: what was encoded is what is decoded, and nothing else is accepted, with the fault named."""

from __future__ import annotations

import math
import random
import re
import string
import struct
import zlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstay.probes import frame as frames
from mainstay.probes.frame import Axis, Frame, FrameError, check_shape, checksum, decode, encode

LETTERS = string.ascii_letters + string.digits
names = st.builds(str.__add__, st.sampled_from(LETTERS), st.text(st.sampled_from(LETTERS + "._:-"), max_size=40))
entities = st.lists(names, min_size=1, max_size=5, unique=True).map(tuple)


@st.composite
def good_frames(draw: st.DrawFn) -> tuple[Frame, int, int]:
    """A frame and how many narrow and wide signals it has."""
    who = draw(entities)
    samples, narrow, wide = draw(st.integers(1, 4)), draw(st.integers(0, 4)), draw(st.integers(0, 3))
    cells = len(who) * samples
    floats = draw(st.lists(st.floats(width=32), min_size=cells * narrow, max_size=cells * narrow))
    integers = draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=cells * wide, max_size=cells * wide))
    values, wides = struct.pack(f"<{len(floats)}f", *floats), struct.pack(f"<{len(integers)}q", *integers)
    frame = Frame(
        version=1,
        subject=draw(names),
        axis=draw(st.sampled_from(Axis)),
        stream=draw(names),
        sequence=draw(st.integers(0, 2**63 - 1)),
        t0=draw(st.floats(0, 1e12)),
        dt=draw(st.floats(1e-6, 1e6)),
        catalog=draw(names),
        entities=who,
        samples=samples,
        crc32=checksum(values, wides),
        values=values,
        wide=wides,
    )
    return frame, narrow, wide


def example(**changes: Any) -> Frame:
    values, wide = struct.pack("<4f", 1, 2, 3, math.nan), struct.pack("<2q", 5, 6)
    fields: dict[str, Any] = {
        "version": 1,
        "subject": "node-1",
        "axis": Axis.TIME,
        "stream": "s",
        "sequence": 7,
        "t0": 1000.0,
        "dt": 1.0,
        "catalog": "0123456789abcdef",
        "entities": ("host",),
        "samples": 2,
        "values": values,
        "wide": wide,
    }
    fields.update(changes)
    fields.setdefault("crc32", checksum(fields["values"], fields["wide"]))
    return Frame(**fields)


def raw(**changes: Any) -> bytes:
    return msgspec.msgpack.encode(msgspec.to_builtins(example(), builtin_types=(bytes,)) | changes)


@given(good_frames())
def test_what_was_encoded_is_decoded(made: tuple[Frame, int, int]) -> None:
    frame, narrow, wide = made
    again = decode(encode(frame))
    assert again == frame
    check_shape(again, narrow=narrow, wide=wide)


@given(good_frames(), st.data())
def test_a_truncated_frame_is_refused(made: tuple[Frame, int, int], data: st.DataObject) -> None:
    body = encode(made[0])
    with pytest.raises(FrameError):
        decode(body[: data.draw(st.integers(0, len(body) - 1))])


@given(good_frames(), st.binary(min_size=1, max_size=20))
def test_trailing_bytes_are_refused(made: tuple[Frame, int, int], more: bytes) -> None:
    with pytest.raises(FrameError):
        decode(encode(made[0]) + more)


@given(st.binary(max_size=200))
def test_noise_is_refused_and_nothing_else_happens(noise: bytes) -> None:
    with pytest.raises(FrameError):
        decode(noise)


@given(good_frames(), st.data())
def test_a_flipped_bit_in_the_payload_is_refused(made: tuple[Frame, int, int], data: st.DataObject) -> None:
    frame = made[0]
    if not frame.values:
        return
    damaged = bytearray(frame.values)
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(FrameError, match="checksum"):
        decode(encode(msgspec.structs.replace(frame, values=bytes(damaged))))


@given(good_frames(), st.integers(0, 9), st.integers(0, 9))
def test_a_wrong_shape_is_named_in_bytes(made: tuple[Frame, int, int], narrow: int, wide: int) -> None:
    frame, has_narrow, has_wide = made
    if (narrow, wide) == (has_narrow, has_wide):
        return
    with pytest.raises(FrameError, match=r"(values|wide) has \d+ bytes, its shape needs \d+"):
        check_shape(frame, narrow=narrow, wide=wide)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"version": 2}, "version"),
        ({"subject": math.nan}, "subject"),
        ({"subject": ""}, "subject"),
        ({"subject": "../etc"}, "subject"),
        ({"stream": "a b"}, "stream"),
        ({"catalog": "x\n"}, "catalog"),
        ({"entities": [math.nan]}, "entities"),
        ({"entities": ["host", "host"]}, "twice"),
        ({"entities": ["no/slash"]}, "entity"),
        ({"entities": ["3>"]}, "entity"),
        ({"entities": ["3>4\n"]}, "entity"),
        ({"entities": []}, "entities"),
        ({"sequence": -1}, "sequence"),
        ({"sequence": math.nan}, "sequence"),
        ({"sequence": 2**64 - 1}, "sequence"),
        ({"t0": math.nan}, "t0"),
        ({"t0": -1.0}, "t0"),
        ({"t0": math.inf}, "t0"),
        ({"dt": 0.0}, "dt"),
        ({"dt": math.nan}, "dt"),
        ({"samples": 0}, "samples"),
        ({"axis": "space"}, "axis"),
        ({"crc32": 1}, "checksum"),
        ({"values": "text"}, "values"),
    ],
)
def test_the_fault_is_named(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(FrameError, match=fault):
        decode(raw(**changes))


def test_a_missing_field_is_named() -> None:
    fields = msgspec.to_builtins(example(), builtin_types=(bytes,))
    del fields["stream"]
    with pytest.raises(FrameError, match="stream"):
        decode(msgspec.msgpack.encode(fields))


def test_an_oversized_frame_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(FrameError, match="more than the"):
        decode(b"\xff" * (frames.MAX_FRAME_BYTES + 1))


def test_too_many_entities_are_refused() -> None:
    with pytest.raises(FrameError, match="entities"):
        decode(raw(entities=[str(n) for n in range(frames.MAX_ENTITIES + 1)]))


def test_the_example_itself_is_good() -> None:
    assert decode(raw()) == example()
    check_shape(example(), narrow=2, wide=1)


GAPS = struct.pack("<4f", 1.0, math.nan, math.nan, math.nan) * 512


def test_gaps_are_deflated_and_come_back_as_they_were() -> None:
    frame = example(values=GAPS, samples=2)
    assert len(encode(frame)) < len(GAPS) / 10
    assert decode(encode(frame)) == frame


def test_what_does_not_shrink_travels_as_it_is() -> None:
    frame = example(values=random.Random(1).randbytes(2048))
    assert frame.values in encode(frame)
    assert decode(encode(frame)) == frame


def test_a_bomb_is_refused_without_being_held() -> None:
    bomb = zlib.compress(bytes(4 * frames.MAX_FRAME_BYTES), 9)
    with pytest.raises(FrameError, match="inflates to more"):
        decode(raw(values=bomb, codec="zlib"))


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        (b"no zlib", "cannot be inflated"),
        (zlib.compress(GAPS)[:-4], "one whole"),
        (zlib.compress(GAPS) + b"more", "one whole"),
        (b"", "one whole"),
    ],
)
def test_a_damaged_deflated_payload_is_refused(values: bytes, fault: str) -> None:
    with pytest.raises(FrameError, match=fault):
        decode(raw(values=values, wide=zlib.compress(b""), codec="zlib"))


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(FrameError, match="codec"):
        decode(raw(codec="lzma"))


anything = st.text(st.sampled_from("aZ09._:->/\n\r\u0664\u00e9 "), max_size=6)
nearly = st.one_of(names, anything, st.sampled_from(["3>4", "3>4\n", "12345678>1", "a" * 128, "a" * 129, "1>2>3", ""]))


@given(st.lists(nearly, max_size=4).map(tuple))
def test_all_entities_together_are_checked_as_each_alone(who: tuple[str, ...]) -> None:
    """Against the words: a legal id, or a pair of ranks."""
    wrong = [name for name in who if not re.fullmatch(r"\d{1,7}>\d{1,7}", name, re.ASCII) and not legal(name)]
    if not wrong:
        frames.check_entities(who)
        return
    with pytest.raises(ValueError, match=re.escape(f"entity {wrong[0]!r} is not a legal id")):
        frames.check_entities(who)


def legal(name: str) -> bool:
    return 0 < len(name) <= 128 and name[0] in LETTERS and set(name) <= set(LETTERS + "._:-")


def test_an_entity_may_be_a_pair_of_ranks() -> None:
    made = example()
    pairs = msgspec.structs.replace(made, entities=("3>4", "16383>0")[: len(made.entities)])
    assert decode(encode(pairs)).entities == pairs.entities
