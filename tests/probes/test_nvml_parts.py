"""The NVML sampler's parts by themselves, against a pynvml of a few lines."""

from __future__ import annotations

import ctypes
import struct
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstay.probes.nvml import library as library_module
from mainstay.probes.nvml.batch import FieldBatch
from mainstay.probes.nvml.errors import GoneError, StaleError
from mainstay.probes.nvml.library import Library
from mainstay.probes.nvml.links import Links

ENTRY = struct.Struct("<IIqqII8s")


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        self.value = value


def driver(answer: Callable[[int, int], tuple[int, int, bytes]], code: int = 0) -> Any:
    """A pynvml whose field batch answers ``answer(field, scope)``: value type, return code, value's bytes."""

    def fields(handle: Any, count: int, buffer: Any) -> int:
        for k in range(count):
            field, scope, *_ = ENTRY.unpack_from(buffer, k * ENTRY.size)
            kind, result, raw = answer(field, scope)
            ENTRY.pack_into(buffer, k * ENTRY.size, field, scope, 0, 0, kind, result, raw.ljust(8, b"\xaa"))
        return code

    return SimpleNamespace(nvmlLib=SimpleNamespace(nvmlDeviceGetFieldValues=fields), NVMLError=NVMLError)


@pytest.mark.parametrize(
    ("kind", "form", "value"),
    [
        (0, "<d", -1.5e-9), (1, "<I", 2**32 - 1), (2, "<Q", 2**63 + 1), (3, "<Q", 2**64 - 2), (4, "<q", -(2**62)),
        (5, "<i", -40), (6, "<H", 65535),
    ],
)  # fmt: skip
def test_every_value_type_is_decoded_whatever_stands_beside_it(kind: int, form: str, value: float) -> None:
    batch = FieldBatch(driver(lambda field, scope: (kind, 0, struct.pack(form, value))), [(7, 3)])
    assert batch.read(None) == {(7, 3): value}


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 40)), unique=True, max_size=80), st.data())
def test_answers_belong_to_their_questions_and_unsupported_ones_are_dropped(
    keys: list[tuple[int, int]], data: st.DataObject
) -> None:
    results = {key: data.draw(st.sampled_from([0, 0, 3, 2, 999, 10])) for key in keys}
    nvml = driver(lambda field, scope: (3, results[field, scope], struct.pack("<Q", 1000 * field + scope)))
    batch = FieldBatch(nvml, keys)
    expected = {key: 1000 * key[0] + key[1] for key in keys if results[key] == 0}
    assert batch.read(None) == expected
    assert batch.keys == tuple(key for key in keys if results[key] not in (2, 3))
    assert batch.read(None) == expected


def test_an_entry_that_the_driver_leaves_alone_is_no_answer() -> None:
    nvml = driver(lambda field, scope: (1, 0, b"\1\0\0\0"))
    batch = FieldBatch(nvml, [(1, 0), (2, 0)])
    assert len(batch.read(None)) == 2
    nvml.nvmlLib.nvmlDeviceGetFieldValues = lambda handle, count, buffer: 0
    assert batch.read(None) == {}
    assert len(batch.keys) == 2


@pytest.mark.parametrize(("code", "error"), [(15, GoneError), (16, GoneError), (18, StaleError), (9, StaleError)])
def test_what_concerns_card_or_driver_is_raised_from_call_and_entry(code: int, error: type[Exception]) -> None:
    for nvml in (driver(lambda field, scope: (1, 0, b""), code), driver(lambda field, scope: (1, code, b""))):
        with pytest.raises(error):
            FieldBatch(nvml, [(1, 0)]).read(None)


def test_a_driver_without_the_batch_is_not_asked_again() -> None:
    batch = FieldBatch(SimpleNamespace(nvmlLib=SimpleNamespace()), [(1, 0)])
    assert batch.read(None) == {}
    assert batch.keys == ()


class Wires:
    """Counters of links that a test sets; ``quiet`` ones answer with a passing error."""

    def __init__(self, links: int) -> None:
        self.links, self.counts, self.quiet = links, dict.fromkeys(range(links), 0), set[int]()

    def __call__(self, field: int, scope: int) -> tuple[int, int, bytes]:
        if field == 91:
            return 1, 0, struct.pack("<I", self.links)
        if field not in (161, 165):
            return 1, 3, b""
        if scope in self.quiet:
            return 1, 999, b""
        return 3, 0, struct.pack("<Q", 1 if field == 165 else self.counts[scope])


def test_a_link_that_is_silent_once_makes_no_total_fall() -> None:
    wires = Wires(3)
    links = Links(driver(wires))
    wires.counts[1] = 100
    assert links.read(0, None)["gpu_nvlink_replays_total"] == 100
    wires.quiet = {1}
    assert "gpu_nvlink_replays_total" not in links.read(10, None)
    wires.quiet = set()
    assert links.read(20, None)["gpu_nvlink_replays_total"] == 100


def test_a_rate_needs_time_to_have_passed() -> None:
    links = Links(driver(Wires(2)))
    links.read(10, None)
    assert "gpu_nvlink_worst_link_errors_per_second" not in links.read(10, None)
    assert links.read(11, None)["gpu_nvlink_worst_link_errors_per_second"] == 0


class Module(SimpleNamespace):
    """A pynvml without cards that counts its calls."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        super().__init__(opened=0, shut=0, fails=0)

    def nvmlInit(self) -> None:  # noqa: N802 - pynvml's own name
        self.opened += 1
        if self.fails:
            raise NVMLError(self.fails)

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.shut += 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 0


def test_the_library_is_not_shut_under_somebody_inside() -> None:
    module = Module()
    library = Library(lambda: module)
    library.open()
    with library.visit("a") as welcome:
        assert welcome
        library.stale("test")
        with library.visit("b") as second:
            assert not second, "no new thread comes in"
        with pytest.raises(OSError, match="reopened"):
            library.open()
        assert module.shut == 0
    library.open()
    assert (module.opened, module.shut) == (2, 1)
    with library.visit("a") as welcome:
        assert welcome


def test_who_hangs_is_not_waited_for_but_never_shut_under_on_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_module, "_HUNG_S", 0.05)
    module = Module()
    library = Library(lambda: module)
    library.open()
    release = threading.Event()

    def hang() -> None:
        with library.visit("hangs"):
            release.wait(10)

    thread = threading.Thread(target=hang)
    thread.start()
    try:
        time.sleep(0.1)
        library.stale("test")
        library.open()
        assert (module.opened, module.shut) == (2, 1)
        library.close()
        assert module.shut == 1
    finally:
        release.set()
        thread.join()


def test_an_opening_that_fails_is_tried_again_with_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(library_module.time, "monotonic", lambda: clock[0])
    module = Module()
    module.fails = 9
    library = Library(lambda: module)
    for _ in range(600):
        library.retry()
        clock[0] += 0.5
    assert 10 <= module.opened <= 20, "five minutes at two samples a second"
    module.fails = 0
    clock[0] += 30
    library.retry()
    assert library.nvml is module


def test_readers_wait_a_moment_for_an_opening_and_then_go_without() -> None:
    module = Module()
    library = Library(lambda: module)
    library.open()
    inside, go = threading.Event(), threading.Event()

    def slow_init() -> None:
        inside.set()
        go.wait(10)

    module.nvmlInit = slow_init
    library.stale("test")
    thread = threading.Thread(target=library.retry)
    thread.start()
    assert inside.wait(5)
    started = time.monotonic()
    with library.visit("a") as welcome:
        assert not welcome
    assert 0.2 < time.monotonic() - started < 2
    go.set()
    thread.join()
    with library.visit("a") as welcome:
        assert welcome


def test_the_entry_has_the_size_of_pynvmls_structure() -> None:
    import pynvml

    assert ctypes.sizeof(pynvml.c_nvmlFieldValue_t) == ENTRY.size == 40
