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
