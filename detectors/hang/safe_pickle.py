"""Pickles that hold nothing but plain containers and scalars, read without the power to run anything.

The opcodes are walked, not executed: what would look up a name, call something or build an object is refused by name.
A dump of PyTorch's flight recorder needs none of that.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any, Final

_SCALARS: Final = frozenset(
    {"BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
    | {"UNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINUNICODE"}
    | {"STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "BINBYTES8", "SHORT_BINBYTES"}
)
_CONSTANTS: Final[dict[str, Any]] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_TUPLES: Final = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUTS: Final = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_GETS: Final = frozenset({"GET", "BINGET", "LONG_BINGET"})
_MARK: Final = object()


class PickleError(ValueError):
    """Not a pickle, a broken one, or one that wants more than plain data."""


def load(data: bytes) -> Any:
    """The value of a pickle of dicts, lists, tuples, strings, bytes, numbers, booleans and None.

    Raises:
        PickleError: it is broken, or an opcode would import or call something; the message names what it asked for.
    """
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "STOP":
                return machine.stack.pop()
            machine.step(opcode.name, argument)
    except (ValueError, IndexError, KeyError, TypeError, UnicodeDecodeError, EOFError, OverflowError) as error:
        if isinstance(error, PickleError):
            raise
        raise PickleError(f"broken pickle: {error}") from error
    raise PickleError("broken pickle: it does not end")


class _Machine:
    """A stack and a memo: all that plain data needs."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.build: dict[str, Callable[[], object]] = {
            "MARK": lambda: self.stack.append(_MARK),
            "EMPTY_DICT": lambda: self.stack.append({}),
            "EMPTY_LIST": lambda: self.stack.append([]),
            "POP": lambda: self._drop(1),
            "DUP": lambda: self.stack.append(self.stack[-1]),
            "TUPLE": lambda: self.stack.append(tuple(self._since_mark())),
            "LIST": lambda: self.stack.append(self._since_mark()),
            "DICT": lambda: self.stack.append(_pairs(self._since_mark())),
            "APPEND": lambda: self._extend([self.stack.pop()]),
            "APPENDS": lambda: self._extend(self._since_mark()),
            "SETITEM": lambda: self._update([self.stack.pop(-2), self.stack.pop()]),
            "SETITEMS": lambda: self._update(self._since_mark()),
            "MEMOIZE": lambda: self.memo.update({len(self.memo): self.stack[-1]}),
            "PROTO": lambda: None,
            "FRAME": lambda: None,
        }

    def step(self, name: str, argument: Any) -> None:
        if name in _SCALARS:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _TUPLES:
            count = _TUPLES[name]
            self.stack.append(tuple(self._drop(count)))
        elif name in _PUTS:
            self.memo[int(argument)] = self.stack[-1]
        elif name in _GETS:
            self.stack.append(self.memo[int(argument)])
        elif name in self.build:
            self.build[name]()
        else:
            asked = f" of {argument!r}" if argument is not None else ""
            last = [value for value in self.stack[-2:] if isinstance(value, str)]
            asked = f" of {'.'.join(last)!r}" if not asked and last else asked
            raise PickleError(f"refused: opcode {name}{asked} would run code; only plain data is read")

    def _drop(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise PickleError("broken pickle: the stack is empty")
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return taken

    def _since_mark(self) -> list[Any]:
        for place in range(len(self.stack) - 1, -1, -1):
            if self.stack[place] is _MARK:
                taken = self.stack[place + 1 :]
                del self.stack[place:]
                return taken
        raise PickleError("broken pickle: no mark")

    def _extend(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise PickleError("broken pickle: append to what is no list")
        target.extend(values)

    def _update(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise PickleError("broken pickle: an item of what is no dict")
        target.update(_pairs(values))


def _pairs(values: list[Any]) -> dict[Any, Any]:
    if len(values) % 2:
        raise PickleError("broken pickle: a key without a value")
    return dict(zip(values[::2], values[1::2], strict=True))
