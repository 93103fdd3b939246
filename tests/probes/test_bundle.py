"""The bundle: its tensors are those of its frames side by side, and nothing else is accepted, with the fault named."""

from __future__ import annotations

import math
import struct
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mainstay.probes import bundle as bundles
from mainstay.probes.bundle import (
    Bundle,
    BundleCodec,
    BundleLayout,
    decode_bundle,
    decode_layout,
    encode_bundle,
    pack,
    read_tensors,
)
from mainstay.probes.frame import Axis, Frame, FrameError, checksum

zstd = bundles.zstd

WHO = {"relay": "r1", "stream": "life", "sequence": 3}


def frame(subject: str = "node-1", **changes: Any) -> Frame:
    values, wide = struct.pack("<8f", *range(7), math.nan), struct.pack("<4q", 5, 6, 7, -(2**63))
    fields: dict[str, Any] = {
        "version": 1,
        "subject": subject,
        "axis": Axis.TIME,
        "stream": f"s-{subject}",
        "sequence": 7,
        "t0": 1000.0,
        "dt": 1.0,
        "catalog": "0123456789abcdef",
        "entities": ("host", f"GPU-{subject}"),
        "samples": 2,
        "values": values,
        "wide": wide,
    }
    fields.update(changes)
    return Frame(**fields, crc32=checksum(fields["values"], fields["wide"]))


def example(**changes: Any) -> Bundle:
    return msgspec.structs.replace(pack([frame("b"), frame("a")], **WHO), **changes)


def raw(**changes: Any) -> bytes:
    """An encoded bundle with some fields changed to what a ``Bundle`` cannot hold."""
    made = msgspec.msgpack.decode(msgspec.msgpack.encode(example()))
    return msgspec.msgpack.encode(made | changes)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[Frame], int, int]:
    """Frames that fit together, and how many narrow and wide signals they have."""
    samples, narrow, wide = draw(st.integers(1, 4)), draw(st.integers(0, 4)), draw(st.integers(0, 3))
    subjects = draw(st.lists(st.integers(0, 500), min_size=1, max_size=9, unique=True))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    frames = []
    for number in subjects:
        count = draw(st.integers(1, 4))
        values = rng.standard_normal((count, narrow, samples)).astype("<f4")
        values[rng.random(values.shape) < 0.3] = np.nan
        integers = rng.integers(-(2**63), 2**63, (count, wide, samples), "<i8", endpoint=False)
        frames.append(
            frame(
                f"node-{number}",
                sequence=draw(st.integers(0, 2**63 - 1)),
                t0=draw(st.floats(1000, 1060)),
                samples=samples,
                entities=("host", *(f"GPU-{k}" for k in range(1, count))),
                values=values.tobytes(),
                wide=integers.tobytes(),
            )
        )
    return frames, narrow, wide


def columns(frames: list[Frame], narrow: int, wide: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """What the tensors must be: each frame's [entity, signal, time] transposed, one after the other."""
    halves = []
    for dtype, signals, payloads in (
        ("<f4", narrow, [f.values for f in frames]),
        ("<i8", wide, [f.wide for f in frames]),
    ):
        parts = [
            np.frombuffer(payload, dtype).reshape(len(f.entities), signals, f.samples)
            for f, payload in zip(frames, payloads, strict=True)
        ]
        halves.append(np.concatenate(parts).transpose(2, 1, 0))
    return halves[0], halves[1]


@given(fleets())
def test_the_tensors_are_those_of_the_frames_side_by_side(made: tuple[list[Frame], int, int]) -> None:
    frames, narrow, wide = made
    again = decode_bundle(encode_bundle(pack(frames, **WHO)))
    layout = decode_layout(again.layout)
    ordered = sorted(frames, key=lambda f: f.subject)
    assert layout.subjects == tuple(f.subject for f in ordered)
    assert layout.streams == tuple(f.stream for f in ordered)
    assert layout.entities == tuple(f.entities for f in ordered)
    assert again.sequences == tuple(f.sequence for f in ordered)
    assert again.starts == tuple(f.t0 for f in ordered)
    assert (again.relay, again.stream, again.sequence) == ("r1", "life", 3)
    assert (again.catalog, again.dt, again.samples) == (frames[0].catalog, 1.0, frames[0].samples)
    got = read_tensors(again, layout, narrow=narrow, wide=wide)
    for have, want in zip(got, columns(ordered, narrow, wide), strict=True):
        np.testing.assert_array_equal(have, want)


@given(fleets(), st.randoms(use_true_random=False))
def test_the_layout_keeps_its_bytes_while_the_nodes_stay_the_same(made: tuple[list[Frame], int, int], rng: Any) -> None:
    frames, _, _ = made
    later = [msgspec.structs.replace(f, sequence=f.sequence // 2, t0=f.t0 + 60) for f in frames]
    rng.shuffle(later)
    assert bytes(pack(frames, **WHO).layout) == bytes(pack(later, **WHO).layout)


def test_slow_signals_are_compressed_and_come_back_as_they_were() -> None:
    gaps = struct.pack("<2f", 1.0, math.nan) * 400
    made = pack([frame(f"n{k}", values=gaps) for k in range(128)], **WHO)
    body = encode_bundle(made)
    assert len(body) < len(made.values) / 10
    again = decode_bundle(body)
    assert (again.values, again.wide, again.codec) == (made.values, made.wide, BundleCodec.RAW)


def test_fields_of_a_later_version_are_ignored() -> None:
    body = raw(more={"a": 1}, layout=[["a", "b"], ["s-a", "s-b"], [["host"], ["host"]], "later"])
    assert decode_layout(decode_bundle(body).layout).subjects == ("a", "b")


@given(st.data())
def test_a_truncated_bundle_is_refused(data: st.DataObject) -> None:
    body = encode_bundle(example())
    with pytest.raises(FrameError):
        decode_bundle(body[: data.draw(st.integers(0, len(body) - 1))])


@given(st.binary(max_size=200))
def test_noise_is_refused_and_nothing_else_happens(noise: bytes) -> None:
    with pytest.raises(FrameError):
        decode_bundle(noise)
    with pytest.raises(FrameError):
        decode_layout(noise)


@given(st.data(), st.sampled_from(["values", "wide"]))
def test_a_flipped_bit_in_the_tensors_is_refused(data: st.DataObject, half: str) -> None:
    made = example()
    damaged = bytearray(getattr(made, half))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(FrameError, match="checksum mismatch"):
        decode_bundle(encode_bundle(msgspec.structs.replace(made, **{half: bytes(damaged)})))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"version": 2}, "bundle version 2"),
        ({"relay": "a/b"}, "relay 'a/b' is not a legal id"),
        ({"stream": ""}, "stream '' is not"),
        ({"catalog": "x y"}, "catalog 'x y' is not"),
        ({"codec": "lzma"}, "codec"),
        ({"sequences": []}, "0 sequences"),
        ({"sequences": [1]}, "1 sequences and 2 starts"),
        ({"sequences": [1] * 129, "starts": [1.0] * 129}, "129 sequences"),
        ({"sequences": [1, -1]}, "sequence -1"),
        ({"sequence": 2**63}, "sequence 9223372036854775808"),
        ({"starts": [0.0, 60.5]}, "differ by 60 s, more than the 60 s"),
        ({"starts": [0.0, math.nan]}, "finite"),
        ({"starts": [0.0, -1.0]}, "finite"),
        ({"dt": 0.0}, "dt=0.0"),
        ({"samples": 0}, "samples=0"),
        ({"values": "text"}, "not a bundle"),
    ],
)
def test_a_bad_envelope_is_refused_by_name(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(FrameError, match=fault):
        decode_bundle(raw(**changes))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"subjects": ()}, "0 subjects"),
        ({"streams": ("s",)}, "1 streams"),
        ({"entities": (("host",),)}, "1 lists"),
        ({"subjects": tuple(f"n{k}" for k in range(129)), "streams": ("s",) * 129, "entities": (("host",),) * 129},
         "129 subjects"),
        ({"subjects": ("a", "a")}, "a subject stands twice"),
        ({"subjects": ("a", "b/c")}, "subject 'b/c' is not a legal id"),
        ({"streams": ("s", "")}, "stream '' is not"),
        ({"entities": (("host",), ())}, "subject b has no entities"),
        ({"entities": (("host",), ("x", "x"))}, "or one twice"),
        ({"entities": (("host",), ("x\n",))}, "is not a legal id"),
        ({"entities": (("host",), ("3>4",))}, "pair of ranks"),
        ({"entities": (("host",), tuple(f"g{k}" for k in range(32_768)))}, "32769 entities"),
    ],
)  # fmt: skip
def test_a_bad_layout_is_refused_by_name(changes: dict[str, Any], fault: str) -> None:
    good = {"subjects": ("a", "b"), "streams": ("s", "s"), "entities": (("host",), ("host",))}
    with pytest.raises(FrameError, match=fault):
        decode_layout(msgspec.msgpack.encode(BundleLayout(**(good | changes))))


@pytest.mark.parametrize(("narrow", "wide", "fault"), [(2, 1, ""), (3, 1, "values has"), (2, 2, "wide has")])
def test_tensors_that_do_not_fit_the_catalog_are_refused(narrow: int, wide: int, fault: str) -> None:
    made, layout = example(), decode_layout(example().layout)
    if not fault:
        assert read_tensors(made, layout, narrow=narrow, wide=wide)[0].shape == (2, 2, 4)
        return
    with pytest.raises(FrameError, match=fault):
        read_tensors(made, layout, narrow=narrow, wide=wide)


def test_a_layout_of_other_nodes_is_refused() -> None:
    with pytest.raises(FrameError, match="layout has 1 subjects, the bundle 2 frames"):
        read_tensors(example(), decode_layout(pack([frame()], **WHO).layout), narrow=2, wide=1)


@pytest.mark.parametrize(
    ("frames", "fault"),
    [
        ([], "0 frames"),
        ([frame(f"n{k}") for k in range(129)], "129 frames"),
        ([frame(), frame(sequence=8)], "stands twice"),
        ([frame("a"), frame("b", catalog="other")], "same catalog"),
        ([frame("a"), frame("b", dt=2.0)], "same catalog, dt"),
        ([frame("a"), frame("b", samples=1)], "samples"),
        ([frame("a"), frame("b", t0=1060.1)], "differ by 60 s"),
        ([frame("a", axis=Axis.STEP)], "time axis only"),
        ([frame("a"), frame("b", values=b"1234")], "a payload of b has 4 bytes"),
        ([frame("a", values=b"12345")], "a payload of a has 5 bytes"),
    ],
)
def test_frames_that_do_not_fit_together_are_refused(frames: list[Frame], fault: str) -> None:
    with pytest.raises(FrameError, match=fault):
        pack(frames, **WHO)


def test_a_bomb_is_refused_without_being_held() -> None:
    bomb = zstd.compress(bytes(2 * bundles.MAX_BUNDLE_BYTES))
    with pytest.raises(FrameError, match="inflate to more"):
        decode_bundle(raw(values=bomb, codec="zstd"))


def test_a_body_that_is_too_large_is_refused_unread() -> None:
    with pytest.raises(FrameError, match="more than the 67108864 allowed"):
        decode_bundle(bytes(bundles.MAX_BUNDLE_BYTES + 1))


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        (b"no zstd", "cannot be inflated"),
        (zstd.compress(b"text")[:-1], "one whole"),
        (zstd.compress(b"text") + b"more", "one whole"),
        (zstd.compress(b"a" * 10, options={zstd.CompressionParameter.window_log: 27}), "checksum|cannot be inflated"),
        (b"", "one whole"),
    ],
)
def test_damaged_compressed_tensors_are_refused(values: bytes, fault: str) -> None:
    with pytest.raises(FrameError, match=fault):
        decode_bundle(raw(values=values, wide=zstd.compress(b""), codec="zstd"))
