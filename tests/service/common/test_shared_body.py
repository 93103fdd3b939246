"""A large answer is made once for all who ask while it is made."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Iterator

import anyio
import pytest

from mainstay.service.common import shared_body
from mainstay.service.common.shared_body import SharedBody


class Text(bytearray):
    """A part that can be watched."""


def body(make: Callable[[], Iterator[bytes]]) -> SharedBody:
    return SharedBody(lambda _encoding: make(), anyio.CapacityLimiter(2))


async def whole(parts: AsyncIterator[bytes]) -> bytes:
    return b"".join([part async for part in parts])


def counting(made: list[int], count: int = 5) -> Callable[[], Iterator[bytes]]:
    def parts() -> Iterator[bytes]:
        begun = len(made)
        for number in range(begun, begun + count):
            made.append(number)
            yield f"{number} ".encode()

    return parts


def test_all_who_ask_while_it_is_made_get_the_same_and_who_comes_later_another() -> None:
    async def run() -> None:
        made: list[int] = []
        shared = body(counting(made))
        first, second = await shared.read(None), await shared.read(None)
        assert made == [0], "the first part alone is made before the answer begins"
        assert await anext(first) == b"0 "
        third = await shared.read(None)
        answers = await asyncio.gather(whole(second), whole(third), whole(first))
        assert answers == [b"0 1 2 3 4 ", b"0 1 2 3 4 ", b"1 2 3 4 "]
        assert await whole(await shared.read(None)) == b"5 6 7 8 9 "
        assert len(made) == 10

    asyncio.run(run())


def test_nobody_joins_an_answer_that_is_slow_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_body, "SHARED_SECONDS", 0.0)

    async def run() -> None:
        made: list[int] = []
        shared = body(counting(made))
        slow = await shared.read(None)
        assert await anext(await shared.read(None)) == b"1 "
        assert (await whole(slow)).startswith(b"0 ")

    asyncio.run(run())


def test_what_all_readers_have_passed_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_body, "SHARED_SECONDS", 0.0)

    async def run() -> None:
        watched: list[weakref.ref[Text]] = []

        def parts() -> Iterator[bytes]:
            for _ in range(5):
                part = Text(b"x" * 100)
                watched.append(weakref.ref(part))
                yield part  # type: ignore[misc]
                del part

        reader = await body(parts).read(None)
        for _ in range(4):
            await anext(reader)
        gc.collect()
        assert sum(part() is not None for part in watched) <= 2

    asyncio.run(run())


def test_an_answer_that_breaks_is_an_error_for_all_and_never_a_short_answer() -> None:
    async def run() -> None:
        def parts() -> Iterator[bytes]:
            yield b"a"
            yield b""
            raise OSError("the disk is gone")

        shared = body(parts)
        first, second = await shared.read(None), await shared.read(None)
        with pytest.raises(OSError, match="the disk is gone"):
            await whole(first)
        with pytest.raises(RuntimeError, match="could not be made"):
            await whole(second)

    asyncio.run(run())


def test_an_answer_that_cannot_begin_raises_at_once_and_is_tried_again() -> None:
    async def run() -> None:
        turns = iter([OSError("not now"), None])

        def parts() -> Iterator[bytes]:
            error = next(turns)
            if error is not None:
                raise error
            yield b"a"

        shared = body(parts)
        with pytest.raises(OSError, match="not now"):
            await shared.read(None)
        assert await whole(await shared.read(None)) == b"a"

    asyncio.run(run())


def test_a_reader_that_leaves_takes_nothing_from_the_others() -> None:
    async def run() -> None:
        shared = body(counting([]))
        first, second = await shared.read(None), await shared.read(None)
        leaving = asyncio.ensure_future(whole(first))
        await asyncio.sleep(0)
        leaving.cancel()
        assert await whole(second) == b"0 1 2 3 4 "
        with pytest.raises(asyncio.CancelledError):
            await leaving

    asyncio.run(run())
