"""The array interpreter of criteria: one pass of numpy over all nodes for what criteria usually are.

It answers exactly what the scalar interpreter would, or refuses: anything but plain arithmetic and comparisons, and any
division by zero or overflow on the way, is :class:`NotVectorized`, and the caller goes value by value.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any, Final

import numpy as np

from mainstay.detectors.base import Bools, Floats

_COMPARE: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Lt: np.less, ast.LtE: np.less_equal, ast.Gt: np.greater, ast.GtE: np.greater_equal,
    ast.Eq: np.equal, ast.NotEq: np.not_equal,
}  # fmt: skip
_BINARY: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_BITS: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.BitAnd: np.logical_and, ast.BitOr: np.logical_or, ast.BitXor: np.logical_xor,
}  # fmt: skip
_ARGUMENTS: Final = {"abs": (1, 1), "bool": (1, 1), "float": (1, 1), "max": (2, 99), "min": (2, 99)}


class NotVectorized(Exception):  # noqa: N818 - a way not taken, no error
    """The expression, or a value on its way, needs the scalar interpreter."""


def vectorized(body: ast.expr, argument: str, values: Floats) -> Bools:
    """The truth of an expression for each value.

    Raises:
        NotVectorized: it is not of the kind that arrays can answer.
    """
    try:
        with np.errstate(divide="raise", over="raise", invalid="raise", under="ignore"):
            answer = _truth(_value(body, argument, values))
    except (FloatingPointError, ZeroDivisionError, OverflowError) as error:
        raise NotVectorized from error
    return np.array(np.broadcast_to(answer, values.shape))


def _value(node: ast.expr, argument: str, values: Floats) -> Any:
    """A float or bool array of the shape of ``values``, or one number."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return np.asarray(node.value if isinstance(node.value, bool) else float(node.value))
    if isinstance(node, ast.Name) and node.id == argument:
        return values
    handler = _HANDLERS.get(type(node))
    if handler is None:
        raise NotVectorized
    return handler(node, argument, values)


def _compare(node: ast.Compare, argument: str, values: Floats) -> Any:
    parts = [_value(one, argument, values) for one in (node.left, *node.comparators)]
    if any(type(op) not in _COMPARE for op in node.ops):
        raise NotVectorized
    pairs = zip(node.ops, parts[:-1], parts[1:], strict=True)
    return reduce(np.logical_and, [_COMPARE[type(op)](left, right) for op, left, right in pairs])


def _bool_op(node: ast.BoolOp, argument: str, values: Floats) -> Any:
    parts = [_value(one, argument, values) for one in node.values]
    if isinstance(node.op, ast.And):
        return reduce(lambda left, right: np.where(_truth(left), right, left), parts)
    return reduce(lambda left, right: np.where(_truth(left), left, right), parts)


def _unary(node: ast.UnaryOp, argument: str, values: Floats) -> Any:
    value = _value(node.operand, argument, values)
    if isinstance(node.op, ast.Not):
        return ~_truth(value)
    if isinstance(node.op, ast.Invert):
        raise NotVectorized
    return -_number(value) if isinstance(node.op, ast.USub) else _number(value)


def _binary(node: ast.BinOp, argument: str, values: Floats) -> Any:
    left, right = _value(node.left, argument, values), _value(node.right, argument, values)
    if type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_number(left), _number(right))
    if type(node.op) in _BITS and left.dtype == np.bool_ and right.dtype == np.bool_:
        return _BITS[type(node.op)](left, right)
    raise NotVectorized


def _if(node: ast.IfExp, argument: str, values: Floats) -> Any:
    test, body, other = (_value(one, argument, values) for one in (node.test, node.body, node.orelse))
    return np.where(_truth(test), body, other)


def _call(node: ast.Call, argument: str, values: Floats) -> Any:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    least, most = _ARGUMENTS.get(name, (1, 0))
    if not least <= len(node.args) <= most:
        raise NotVectorized
    return _FUNCTIONS[name](*(_number(_value(one, argument, values)) for one in node.args))


def _truth(value: Any) -> Bools:
    return np.asarray(value, np.bool_)


def _number(value: Any) -> Floats:
    return np.asarray(value, np.float64)


_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "abs": np.abs,
    "bool": _truth,
    "float": _number,
    "max": lambda *many: reduce(np.maximum, many),
    "min": lambda *many: reduce(np.minimum, many),
}
_HANDLERS: Final[dict[type[ast.AST], Callable[[Any, str, Floats], Any]]] = {
    ast.Compare: _compare,
    ast.BoolOp: _bool_op,
    ast.UnaryOp: _unary,
    ast.BinOp: _binary,
    ast.IfExp: _if,
    ast.Call: _call,
}
