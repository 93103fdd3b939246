"""The interpreter of criteria: a parsed and checked expression and its names in, Python's own answer out.

Arithmetic is on numbers only and powers are of floats, so no text or integer can be made to grow without bound.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal

import numpy as np

Names = Mapping[str, object]


def _round(value: Any, digits: int | None = None) -> Any:
    """Of floats where digits are given: of an integer Python would first raise ten to their power."""
    return round(value) if digits is None else round(float(value), digits)


FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "abs": abs, "all": all, "any": any, "bool": bool, "float": float, "int": int, "len": len, "list": list, "max": max,
    "min": min, "round": _round, "set": set, "sorted": sorted, "sum": sum,
}  # fmt: skip
METHODS: Final = frozenset({"get", "items", "keys", "values"})
"""Of dictionaries, which is what a stored rule may be."""

COMPARE: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda one, many: one in many, ast.NotIn: lambda one, many: one not in many,
}  # fmt: skip
BINARY: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: lambda one, two: float(one) ** float(two),
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
}  # fmt: skip
UNARY: Final[dict[type[ast.unaryop], Callable[[Any], Any]]] = {
    ast.Not: operator.not_, ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert,
}  # fmt: skip


class Unjudgeable(Exception):  # noqa: N818 - no error of the program: an answer that a rule cannot give
    """A criterion has no answer for what it was given; the message says what Python would raise."""


def evaluate(body: ast.expr, names: Names, *, errors: Literal["ignore", "raise"] = "ignore") -> object:
    """The value of an expression.

    Args:
        body: of the criterion.
        names: with their values, which may be arrays where every operation on them is elementwise.
        errors: what to do where numpy divides by zero or leaves the range of floats.

    Raises:
        Unjudgeable: it has none.
    """
    try:
        with np.errstate(all=errors):
            return _value(body, names)
    except KeyError as error:
        raise Unjudgeable(f"{error.args[0]!r} is not there") from error
    except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError) as error:
        raise Unjudgeable(str(error) or type(error).__name__) from error


def _value(node: ast.expr, names: Names) -> Any:
    return _HANDLERS[type(node)](node, names)


def _name(node: ast.Name, names: Names) -> Any:
    return names[node.id]


def _compare(node: ast.Compare, names: Names) -> Any:
    left = _value(node.left, names)
    result: Any = True
    for op, right_node in zip(node.ops, node.comparators, strict=True):
        if not result:
            return result
        right = _value(right_node, names)
        result = COMPARE[type(op)](left, right)
        left = right
    return result


def _bool_op(node: ast.BoolOp, names: Names) -> Any:
    result: Any = None
    for one in node.values:
        result = _value(one, names)
        if bool(result) is isinstance(node.op, ast.Or):
            return result
    return result


def _unary(node: ast.UnaryOp, names: Names) -> Any:
    value = _value(node.operand, names)
    return UNARY[type(node.op)](value if isinstance(node.op, ast.Not) else _number(value))


def _binary(node: ast.BinOp, names: Names) -> Any:
    left, right = _number(_value(node.left, names)), _number(_value(node.right, names))
    return BINARY[type(node.op)](left, right)


def _number(value: Any) -> Any:
    if not isinstance(value, int | float | np.number | np.bool_ | np.ndarray):
        raise TypeError(f"arithmetic with {type(value).__name__}")
    return value


def _if(node: ast.IfExp, names: Names) -> Any:
    return _value(node.body if _value(node.test, names) else node.orelse, names)


def _subscript(node: ast.Subscript, names: Names) -> Any:
    return _value(node.value, names)[_value(node.slice, names)]


def _call(node: ast.Call, names: Names) -> Any:
    arguments = [_value(one, names) for one in node.args]
    if isinstance(node.func, ast.Name):
        return FUNCTIONS[node.func.id](*arguments)
    assert isinstance(node.func, ast.Attribute)  # nothing else passes the check
    owner = _value(node.func.value, names)
    if not isinstance(owner, dict):
        raise TypeError(f"{type(owner).__name__} has no {node.func.attr}()")
    return getattr(owner, node.func.attr)(*arguments)


def _loop(node: ast.GeneratorExp | ast.ListComp, names: Names) -> list[Any]:
    return list(_turns(node, names))


def _turns(node: ast.GeneratorExp | ast.ListComp, names: Names) -> Iterator[Any]:
    (part,) = node.generators
    for one in _value(part.iter, names):
        inner = {**names, **_bound(part.target, one)}
        if all(_value(test, inner) for test in part.ifs):
            yield _value(node.elt, inner)


def _bound(target: ast.expr, value: Any) -> dict[str, Any]:
    if isinstance(target, ast.Name):
        return {target.id: value}
    assert isinstance(target, ast.Tuple)  # nothing else passes the check
    bound: dict[str, Any] = {}
    for part, one in zip(target.elts, value, strict=True):
        bound |= _bound(part, one)
    return bound


_HANDLERS: Final[dict[type[ast.AST], Callable[[Any, Names], Any]]] = {
    ast.Constant: lambda node, _names: node.value,
    ast.Name: _name,
    ast.Compare: _compare,
    ast.BoolOp: _bool_op,
    ast.UnaryOp: _unary,
    ast.BinOp: _binary,
    ast.IfExp: _if,
    ast.Subscript: _subscript,
    ast.Call: _call,
    ast.Tuple: lambda node, names: tuple(_value(one, names) for one in node.elts),
    ast.List: lambda node, names: [_value(one, names) for one in node.elts],
    ast.Set: lambda node, names: {_value(one, names) for one in node.elts},
    ast.GeneratorExp: _loop,
    ast.ListComp: _loop,
}
