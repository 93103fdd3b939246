"""Criteria: the ``lambda x: x < -0.05`` texts of SuperBench's rule files, parsed and interpreted, never run as code.

SuperBench hands the text to ``eval``: a rule file can run anything. Here ``ast`` only parses; what may stand in a
criterion is a short list of nodes, functions and methods, bounded in length and depth, and an interpreter walks it. Its
answers are Python's own, for scalars (:meth:`Criterion.answer`) and, many times faster, for arrays of numbers
(:meth:`Criterion.judge`).
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from mainstay.detectors.base import Bools, Floats
from mainstay.detectors.cli_errors import InputError
from mainstay.detectors.superbench.interpret import BINARY, COMPARE, FUNCTIONS, METHODS, UNARY, Unjudgeable, evaluate
from mainstay.detectors.superbench.names import shown

LONGEST: Final = 2000
"""Characters of a criterion: SuperBench's own have up to 80."""
DEEPEST: Final = 40
"""Levels of a criterion, far within Python's stack."""
MOST_LOOPS: Final = 2
"""Comprehensions in a criterion: each loops over a rule's metrics, so their number is the power of its time."""

_NODES: Final[tuple[type[ast.AST], ...]] = (
    ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.IfExp, ast.Constant, ast.Name, ast.Subscript, ast.Call,
    ast.Attribute, ast.Tuple, ast.List, ast.Set, ast.GeneratorExp, ast.ListComp, ast.comprehension, ast.Load, ast.Store,
    ast.And, ast.Or, *UNARY, *BINARY, *COMPARE,
)  # fmt: skip
_ELEMENTWISE: Final = (
    ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.UnaryOp, ast.USub, ast.UAdd, ast.Call,
    ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq, ast.Constant, ast.Name, ast.Load,
)  # fmt: skip
"""What may stand in a comparison that the interpreter answers for a whole array at once; of calls only ``abs``."""


@dataclass(frozen=True, slots=True)
class SuperBenchCriterion:
    """One parsed criterion."""

    text: str
    """As it stands in the rule file; findings quote it."""
    argument: str
    body: ast.expr

    def answer(self, value: object) -> object:
        """What Python's own ``eval(text)(value)`` would return.

        Raises:
            Unjudgeable: where Python would raise; the message says what.
        """
        return evaluate(self.body, {self.argument: value})

    def judges(self) -> bool:
        """Whether it answers True or False for a number: SuperBench's own test, with 0 (1 where 0 divides)."""
        try:
            return isinstance(self.answer(0), bool)
        except Unjudgeable:
            pass
        try:
            return isinstance(self.answer(1), bool)
        except Unjudgeable:
            return False

    def judge(self, values: Floats) -> tuple[Bools, Bools]:
        """Which values violate it, and for which it has an answer at all.

        Args:
            values: any shape, no NaN.

        Returns:
            violated and known, each of the shape of ``values``; not violated where not known.
        """
        try:
            return self._of_array(self.body, values), np.ones(values.shape, np.bool_)
        except Unjudgeable:  # for arrays, or for one value at least: a division by zero, an overflow
            return self._one_by_one(values)

    def _of_array(self, node: ast.expr, values: Floats) -> Bools:
        """The truth for all values at once, of comparisons of sums and products joined by ``and`` and ``or``."""
        if isinstance(node, ast.BoolOp):
            parts = [self._of_array(part, values) for part in node.values]
            return np.asarray((np.all if isinstance(node.op, ast.And) else np.any)(parts, axis=0))
        root, *inner = ast.walk(node)
        names = {part.id for part in inner if isinstance(part, ast.Name)}
        if not isinstance(root, ast.Compare) or len(root.ops) > 1 or not names <= {self.argument, "abs"}:
            raise Unjudgeable("it is not one comparison")
        if not all(isinstance(part, _ELEMENTWISE) for part in inner):
            raise Unjudgeable("it compares more than numbers")
        return np.full(values.shape, evaluate(root, {self.argument: values}, errors="raise"), np.bool_)

    def _one_by_one(self, values: Floats) -> tuple[Bools, Bools]:
        violated = np.zeros(values.shape, np.bool_)
        known = np.ones(values.shape, np.bool_)
        for place, value in enumerate(values.ravel().tolist()):
            try:
                violated.flat[place] = bool(self.answer(value))
            except Unjudgeable:
                known.flat[place] = False
        return violated, known

    def references(self) -> frozenset[str]:
        """Rules that it reads from the argument: ``label["rule1"]``."""
        return frozenset(
            str(node.slice.value)
            for node in ast.walk(self.body)
            if isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Name)
            and node.value.id == self.argument
            and isinstance(node.slice, ast.Constant)
        )


def parse(text: str) -> SuperBenchCriterion:
    """A criterion, checked.

    Raises:
        InputError: it is no lambda of one argument, or uses what is not allowed; the message names it.
    """
    if len(text) > LONGEST:
        raise InputError(f"has more than {LONGEST} characters")
    function = _lambda(text)
    arguments = function.args
    extra = [*arguments.posonlyargs, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg, *arguments.defaults]
    if len(arguments.args) != 1 or any(one is not None for one in extra):
        raise InputError(f"{shown(text)} must be a lambda of exactly one argument")
    argument = arguments.args[0].arg
    _check(function.body, argument)
    return SuperBenchCriterion(text, argument, function.body)


def _lambda(text: str) -> ast.Lambda:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # such as "x is 0": odd, not wrong
            tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as error:
        raise InputError(f"{shown(text)} cannot be read: {error.msg}") from error
    except (ValueError, MemoryError, RecursionError) as error:
        raise InputError(f"{shown(text)} cannot be read: {error or 'nested too deeply'}") from error
    if not isinstance(tree.body, ast.Lambda):
        raise InputError(f"{shown(text)} must be a lambda, such as 'lambda x: x < -0.05'")
    return tree.body


def _check(body: ast.expr, argument: str) -> None:
    bound = {argument}
    loops = 0
    for node, depth in _walk(body):
        if depth > DEEPEST:
            raise InputError(f"is nested more than {DEEPEST} levels deep")
        if not isinstance(node, _NODES):
            raise InputError(f"uses {_said(node)}, which no criterion may")
        if isinstance(node, ast.comprehension):
            loops += 1
            bound.update(part.id for part in ast.walk(node.target) if isinstance(part, ast.Name))
        _check_one(node)
    if loops > MOST_LOOPS:
        raise InputError(f"has {loops} loops; {MOST_LOOPS} are allowed")
    _check_names(body, bound)


def _check_names(body: ast.expr, bound: set[str]) -> None:
    """Only calls may use names that are not bound, or attributes."""
    calls = {id(node.func) for node in ast.walk(body) if isinstance(node, ast.Call)}
    for node in ast.walk(body):
        if isinstance(node, ast.Name) and id(node) not in calls and node.id not in bound:
            raise InputError(f"uses the name {node.id!r}; it knows only {', '.join(sorted(bound))}")
        if isinstance(node, ast.Attribute) and id(node) not in calls:
            raise InputError(f"reads the attribute {node.attr!r}, which no criterion may")


def _check_one(node: ast.AST) -> None:
    if isinstance(node, ast.Constant) and not isinstance(node.value, int | float | str | None):
        raise InputError(f"uses the constant {node.value!r}; numbers, texts, True, False and None are allowed")
    if isinstance(node, ast.Call):
        _check_call(node)
    if isinstance(node, ast.GeneratorExp | ast.ListComp) and (len(node.generators) != 1 or node.generators[0].is_async):
        raise InputError("has a loop over more than one thing")
    if isinstance(node, ast.comprehension) and not isinstance(node.target, ast.Name | ast.Tuple):
        raise InputError("has a loop whose variable is no name")


def _check_call(node: ast.Call) -> None:
    if node.keywords or any(isinstance(one, ast.Starred) for one in node.args):
        raise InputError("calls a function with named or starred arguments, which no criterion may")
    if isinstance(node.func, ast.Name):
        if node.func.id not in FUNCTIONS:
            raise InputError(f"calls {node.func.id}(); allowed are {', '.join(sorted(FUNCTIONS))}")
    elif not (isinstance(node.func, ast.Attribute) and node.func.attr in METHODS):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else "what is no name"
        raise InputError(f"calls {name}; allowed methods are {', '.join(sorted(METHODS))}")


def _walk(body: ast.expr) -> Iterator[tuple[ast.AST, int]]:
    """All nodes with their depth, without recursion."""
    waiting: list[tuple[ast.AST, int]] = [(body, 0)]
    while waiting:
        node, depth = waiting.pop()
        yield node, depth
        waiting.extend((child, depth + 1) for child in ast.iter_child_nodes(node))


def _said(node: ast.AST) -> str:
    names: dict[type[Any], str] = {ast.Lambda: "a second lambda", ast.JoinedStr: "a formatted string"}
    return names.get(type(node), type(node).__name__)
