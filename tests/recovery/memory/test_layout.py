"""Layouts: offsets follow from the description, the serial form cannot lie, differences are named."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from mainstay.recovery.memory.errors import CorruptArenaError, LayoutMismatchError
from mainstay.recovery.memory.layout import ALIGNMENT, DTYPES, Layout

shapes = st.lists(st.integers(0, 7), max_size=3).map(tuple)
described = st.dictionaries(st.text(max_size=12), st.tuples(st.sampled_from(sorted(DTYPES)), shapes), max_size=12)


@given(described)
def test_tensors_are_aligned_and_do_not_overlap(tensors):
    layout = Layout.build(tensors)
    end = 0
    for spec in layout.tensors:
        assert spec.offset % ALIGNMENT == 0
        assert spec.offset >= end
        end = spec.offset + spec.nbytes
    assert end <= layout.nbytes
    assert layout.nbytes % ALIGNMENT == 0


@given(described)
def test_the_serial_form_is_the_same_layout(tensors):
    layout = Layout.build(tensors)
    assert Layout.from_json(layout.to_json()) == layout


@given(described, described)
def test_different_layouts_have_different_digests(one, other):
    a, b = Layout.build(one), Layout.build(other)
    same = list(one.items()) == list(other.items())
    assert (a.digest == b.digest) == same
    if not same:
        with pytest.raises(LayoutMismatchError):
            a.require_same(b, "arena")


@given(st.binary(max_size=200))
def test_garbage_is_not_a_layout(text):
    try:
        layout = Layout.from_json(text)
    except CorruptArenaError:
        return
    assert Layout.from_json(layout.to_json()) == layout


@pytest.mark.parametrize(
    ("tensors", "word"),
    [
        ({"x": ("float7", (1,))}, "float7"),
        ({"x": ("uint8", (-1,))}, "impossible shape"),
        ({"x": ("float64", (1 << 60,))}, "larger than"),
    ],
)
def test_impossible_tensors_are_refused_by_name(tensors, word):
    with pytest.raises(ValueError, match=word):
        Layout.build(tensors)


def test_two_tensors_of_one_name_are_refused():
    with pytest.raises(CorruptArenaError, match="twice"):
        Layout.from_json(b'[["a","uint8",[1]],["a","uint8",[1]]]')


def test_views_show_the_bits():
    layout = Layout.build({"w": ("float32", (2, 3)), "h": ("bfloat16", (4,)), "s": ("int64", ())})
    slot = np.zeros(layout.nbytes, np.uint8)
    views = layout.views(slot)
    views["w"][1, 2] = 1.5
    views["h"][:] = 0x3F80
    views["s"][...] = -2
    assert slot[20:24].view(np.float32)[0] == 1.5
    assert {name: view.shape for name, view in views.items()} == {"w": (2, 3), "h": (4,), "s": ()}
    assert views["h"].dtype == np.uint16


def test_places_by_hand():
    layout = Layout.build({"a": ("uint8", (65,)), "b": ("float64", (2, 4)), "c": ("bool", ())})
    assert [(spec.offset, spec.nbytes) for spec in layout.tensors] == [(0, 65), (128, 64), (192, 1)]
    assert (layout.nbytes, Layout.build({}).nbytes, Layout.build({"e": ("uint8", (0,))}).nbytes) == (256, 64, 64)
    assert layout.to_json() == b'[["a","uint8",[65]],["b","float64",[2,4]],["c","bool",[]]]'


def test_a_layout_has_its_limits(monkeypatch):
    assert Layout.build({"x": ("uint8", (2**50,))}).nbytes == 2**50
    with pytest.raises(ValueError, match="'x' makes the layout larger than 1000000 tensors or 1125899906842624 bytes"):
        Layout.build({"x": ("uint8", (2**50 + 1,))})
    with pytest.raises(ValueError, match="'y' makes"):
        Layout.build({"x": ("uint8", (2**50,)), "y": ("uint8", (1,))})
    assert Layout.build({"x": ("uint8", (1,)), "y": ("uint8", (2**50 - 64,))}).nbytes == 2**50
    with pytest.raises(ValueError, match="'y' makes"):
        Layout.build({"x": ("uint8", (1,)), "y": ("uint8", (2**50 - 63,))})
    monkeypatch.setattr("mainstay.recovery.memory.layout.MAX_TENSORS", 2)
    two = {"x": ("uint8", (1,)), "y": ("uint8", (1,))}
    assert len(Layout.build(two).tensors) == 2
    with pytest.raises(ValueError, match="'z' makes"):
        Layout.build({**two, "z": ("uint8", (1,))})


def test_the_first_difference_is_named():
    one = Layout.build({"a": ("uint8", (1,)), "b": ("uint8", (2,))})
    for other, said in (
        ({"a": ("uint8", (1,)), "b": ("int8", (2,))}, r"arena: tensor 'b' is uint8\[2\] at 64 here and int8\[2\]"),
        ({"a": ("uint8", (1,))}, "tensor 'b' is .* here and absent there"),
        ({"a": ("uint8", (1,)), "b": ("uint8", (2,)), "c": ("uint8", ())}, r"'c' is absent here and uint8\[\] at 128"),
    ):  # fmt: skip
        with pytest.raises(LayoutMismatchError, match=said):
            one.require_same(Layout.build(other), "arena")
    one.require_same(Layout.build({"a": ("uint8", (1,)), "b": ("uint8", (2,))}), "arena")
