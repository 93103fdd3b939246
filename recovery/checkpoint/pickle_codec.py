"""A pickle stream as plain data: terms in, opcodes out, and back. Nothing is ever imported, called or built.

``torch.distributed.checkpoint`` keeps its ``.metadata`` as a pickle, and ``torch.save`` the description of a tensor.
To write one takes a dozen opcodes of protocol 2; to read one it is enough to know what *would* be built. A stream that
names anything that its reader does not admit is refused before the name is looked at twice.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

MAX_TERMS: Final = 100_000_000
"""More opcodes than that are no description of a checkpoint: some forty a tensor, and a million tensors at most."""


class OpcodesError(ValueError):
    """The stream is damaged, or names what is not admitted; the message says which."""


@dataclass(frozen=True, slots=True)
class Name:
    """A global: where it would be imported from."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True)
class PickledCall:
    """``function(*arguments)``."""

    function: Name
    arguments: tuple[Any, ...]


@dataclass(slots=True)
class PickledObject:
    """An object of ``kind`` with ``state``, as ``__setstate__`` or ``__dict__`` would have it."""

    kind: Name
    state: Any = None


@dataclass(frozen=True, slots=True)
class Persistent:
    """What the stream's reader fetches: a tensor's bytes."""

    key: Any


@dataclass(slots=True)
class PickledDict:
    """A dict whose keys may be any term."""

    items: list[tuple[Any, Any]] = field(default_factory=list)

    def text(self) -> dict[str, Any]:
        """The entries whose key is text."""
        return {key: value for key, value in self.items if isinstance(key, str)}


# Writing


def encode(term: Any) -> bytes:
    """The stream (protocol 2) from which a pickle reader builds ``term``.

    Raises:
        TypeError: something that is no term.
    """
    return b"\x80\x02" + _emit(term) + b"."


def _emit(term: Any) -> bytes:
    kind = next((kind for kind in type(term).__mro__ if kind in _EMITTERS), None)
    if kind is None:
        raise TypeError(f"{type(term).__name__} is no term of a pickle stream")
    return _EMITTERS[kind](term)


def _emit_all(terms: Iterable[Any]) -> bytes:
    return b"".join(map(_emit, terms))


def _integer(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    raw = value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def _text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def _object(term: PickledObject) -> bytes:
    return _emit(term.kind) + b")\x81" + (b"" if term.state is None else _emit(term.state) + b"b")


_EMITTERS: Final[dict[type, Callable[[Any], bytes]]] = {
    type(None): lambda _: b"N",
    bool: lambda value: b"\x88" if value else b"\x89",
    int: _integer,
    float: lambda value: b"G" + struct.pack(">d", value),
    str: _text,
    tuple: lambda term: b"(" + _emit_all(term) + b"t",
    list: lambda term: b"](" + _emit_all(term) + b"e",
    dict: lambda term: _emit(PickledDict([*term.items()])),
    PickledDict: lambda term: b"}(" + _emit_all(part for pair in term.items for part in pair) + b"u",
    Name: lambda term: f"c{term.module}\n{term.name}\n".encode(),
    PickledCall: lambda term: _emit(term.function) + _emit(term.arguments) + b"R",
    PickledObject: _object,
    Persistent: lambda term: _emit(term.key) + b"Q",
}


# Reading

_MARK: Final = object()
_ORDERED: Final = Name("collections", "OrderedDict")
_VALUES: Final = {
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "INT", "UNICODE",
}  # fmt: skip


def decode(raw: bytes, admitted: Collection[str]) -> Any:
    """The term that ``encode`` (or a pickler) wrote.

    Args:
        raw: the stream.
        admitted: globals that may be named, as ``module.name``; ``module.*`` admits all of a module.

    Raises:
        OpcodesError: damaged, an opcode that a description of a checkpoint does not need, or a name not admitted.
    """
    machine = _Machine(frozenset(admitted))
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(raw)):
            if count > MAX_TERMS:
                raise OpcodesError(f"more than {MAX_TERMS} opcodes")
            if opcode.name == "STOP":
                return machine.stack.pop()
            machine.do(opcode.name, argument)
    except (IndexError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise error if isinstance(error, OpcodesError) else OpcodesError(f"a damaged stream: {error!r}") from error
    raise OpcodesError("a stream without an end")


class _Machine:
    """The stack of a pickle reader, with terms on it instead of objects."""

    def __init__(self, admitted: frozenset[str]) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._admitted = admitted
        self._doers: dict[str, Callable[[Any], None]] = dict.fromkeys(_VALUES, self.stack.append) | {
            "NONE": lambda _: self.stack.append(None),
            "NEWTRUE": lambda _: self.stack.append(True),
            "NEWFALSE": lambda _: self.stack.append(False),
            "EMPTY_TUPLE": lambda _: self.stack.append(()),
            "EMPTY_LIST": lambda _: self.stack.append([]),
            "EMPTY_DICT": lambda _: self.stack.append(PickledDict()),
            "MARK": lambda _: self.stack.append(_MARK),
            **dict.fromkeys(("PROTO", "FRAME"), lambda _: None),
            "MEMOIZE": lambda _: self._remember(len(self._memo)),
            **dict.fromkeys(("BINPUT", "LONG_BINPUT"), self._remember),
            **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda number: self.stack.append(self._memo[number])),
            "GLOBAL": lambda argument: self._name(*argument.split(" ", 1)),
            "STACK_GLOBAL": lambda _: self._name(*self._take(2)),
            "TUPLE1": lambda _: self.stack.append(self._take(1)),
            "TUPLE2": lambda _: self.stack.append(self._take(2)),
            "TUPLE3": lambda _: self.stack.append(self._take(3)),
            "TUPLE": lambda _: self.stack.append(tuple(self._marked())),
            "APPEND": lambda _: self._extend(self._take(1)),
            "APPENDS": lambda _: self._extend(self._marked()),
            "SETITEM": lambda _: self._set(self._take(2)),
            "SETITEMS": lambda _: self._set(self._marked()),
            "REDUCE": lambda _: self._call(*self._take(2)),
            "NEWOBJ": lambda _: self._make(*self._take(2)),
            "BUILD": lambda _: self._build(),
            "BINPERSID": lambda _: self.stack.append(Persistent(*self._take(1))),
        }

    def do(self, name: str, argument: Any) -> None:
        if name not in self._doers:
            raise OpcodesError(f"opcode {name} has no place in a checkpoint's metadata")
        self._doers[name](argument)

    def _take(self, count: int) -> tuple[Any, ...]:
        if len(self.stack) < count:
            raise OpcodesError("a damaged stream: the stack is empty")
        taken = tuple(self.stack[-count:])
        del self.stack[-count:]
        return taken

    def _marked(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise OpcodesError("a damaged stream: no mark")
        taken = self.stack[at + 1 :]
        del self.stack[at:]
        return taken

    def _remember(self, number: int) -> None:
        self._memo[number] = self.stack[-1]

    def _name(self, module: str, name: str) -> None:
        if not self._admitted & {f"{module}.{name}", f"{module}.*"}:
            raise OpcodesError(f"names {module}.{name}, which is not read: state dicts have no such objects")
        self.stack.append(Name(module, name))

    def _extend(self, parts: Iterable[Any]) -> None:
        self._top(list).extend(parts)

    def _set(self, flat: tuple[Any, ...] | list[Any]) -> None:
        self._top(PickledDict).items.extend(zip(flat[::2], flat[1::2], strict=True))

    def _call(self, function: Any, arguments: Any) -> None:
        if not isinstance(function, Name) or not isinstance(arguments, tuple):
            raise OpcodesError("a damaged stream: it calls what is no name")
        ordered = (function, arguments) == (_ORDERED, ())
        self.stack.append(PickledDict() if ordered else PickledCall(function, arguments))

    def _make(self, kind: Any, arguments: Any) -> None:
        if not isinstance(kind, Name) or arguments != ():
            raise OpcodesError("a damaged stream: it makes what is no name")
        self.stack.append(PickledObject(kind))

    def _build(self) -> None:
        (state,) = self._take(1)
        if not isinstance(self.stack[-1], PickledDict):  # what an OrderedDict has beside its entries is dropped
            self._top(PickledObject).state = state

    def _top(self, kind: type) -> Any:
        top = self.stack[-1]
        if not isinstance(top, kind):
            raise OpcodesError(f"a damaged stream: {type(top).__name__} where {kind.__name__} is needed")
        return top
