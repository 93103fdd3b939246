"""The mutants that ``bench.mutants`` draws from: every place in the code of its areas where an operator applies."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import parso
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator, operator_names

AREAS: Final = {
    "detectors": ["detectors/**/*.py"],
    "memory": ["recovery/memory/*.py"],
    "coding": ["recovery/coding/*.py"],
    "planner": [
        *(f"recovery/{name}.py" for name in ("planner", "planner_input", "strategy_choice", "recovery_plan")),
        "recovery/strategies/*.py",
        "recovery/cost_model/*.py",
    ],
    "auth": ["service/auth/*.py"],
    "remediation": ["service/remediation/*.py"],
    "spool": ["probes/spool.py"],
}
_NO_EFFECT: Final = ("Eq_Is", "NotEq_IsNot", "Is_Eq", "IsNot_NotEq")
_NEED_ARGUMENTS: Final = ("VariableReplacer", "VariableInserter")
_ANNOTATED: Final = ("tfpdef", "annassign")


@dataclass(frozen=True)
class Mutant:
    """One change: ``operator`` applied at its ``occurrence`` in ``file``."""

    area: str
    file: str
    line: int
    operator: str
    occurrence: int
    text: str = field(default="", compare=False)
    """The file with the change."""

    @property
    def key(self) -> str:
        """Return its name in the file of results."""
        return f"{self.file}:{self.line} {self.operator} {self.occurrence}"


def files_of(tree: Path) -> dict[str, list[str]]:
    """Return the files of each area, relative to ``tree``."""
    return {
        area: sorted(str(path.relative_to(tree)) for pattern in patterns for path in tree.glob(pattern))
        for area, patterns in AREAS.items()
    }


def sample(tree: Path, count: int, seed: int) -> list[Mutant]:
    """Draw ``count`` places in the code of all areas, and at each place one of the operators that apply there."""
    operators = [name for name in operator_names() if not name.endswith((*_NO_EFFECT, *_NEED_ARGUMENTS))]
    instances = {name: get_operator(name)() for name in operators}
    places: dict[tuple[str, str, tuple[int, int]], list[Mutant]] = defaultdict(list)
    for area, files in files_of(tree).items():
        for file in files:
            for position, operator, occurrence in _positions((tree / file).read_text(), instances):
                mutant = Mutant(area, file, position[0], operator, occurrence)
                places[area, file, position].append(mutant)
    drawn, chosen = random.Random(seed), []
    for place in drawn.sample(sorted(places), len(places)):
        mutant = drawn.choice(places[place])
        text = _mutated(tree, mutant)
        if text is not None:
            chosen.append(replace(mutant, text=text))
        if len(chosen) == count:
            break
    return chosen


def _mutated(tree: Path, mutant: Mutant) -> str | None:
    """Return the changed file; None where the operator has no answer to this code, such as a dotted exception."""
    try:
        text = mutate_code((tree / mutant.file).read_text(), get_operator(mutant.operator)(), mutant.occurrence)
        compile(str(text), mutant.file, "exec")
    except (AttributeError, SyntaxError):
        return None
    return str(text)


def _positions(source: str, operators: dict[str, Operator]) -> Iterator[tuple[tuple[int, int], str, int]]:
    """Yield each place of ``source`` with each operator and the number by which the operator knows it."""
    seen: Counter[str] = Counter()
    for node, annotation in _nodes(parso.parse(source), annotation=False):  # type: ignore[no-untyped-call]
        for name, operator in operators.items():
            for start, _ in operator.mutation_positions(node):
                if not annotation:
                    yield start, name, seen[name]
                seen[name] += 1


def _nodes(node: Any, *, annotation: bool) -> Iterator[tuple[Any, bool]]:
    if node.type in ("name", "newline", "endmarker", "string"):
        return
    yield node, annotation
    before = ""
    for child in getattr(node, "children", ()):
        kind = node.type
        yield from _nodes(child, annotation=annotation or before == "->" or (kind in _ANNOTATED and before == ":"))
        before = child.get_code().strip() if child.type == "operator" else ""


def change_of(tree: Path, mutant: Mutant) -> str:
    """Return the changed line as it was and as it becomes."""
    old, new = (tree / mutant.file).read_text().splitlines(), mutant.text.splitlines()
    at = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)) - 1)
    return f"{old[at].strip()} -> {new[at].strip()}"
