"""How many small changes to the code the tests notice: a seeded sample of cosmic-ray's mutants.

Needs ``pip install cosmic-ray coverage``. The tests that run the changed statement run in a forked process of a copy of
the tree. Left out are changes that have no effect by design: in annotations, and between ``is`` and ``==``. A mutant
that times out counts as killed. Survivors go to ``bench/mutant_survivors.json``, which keeps the reason that a person
gave each; ``--again`` runs only these again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from bench import lib_mutant_tests, lib_mutants
from bench.lib_mutant_tests import ForkingSession, TestMap
from bench.lib_mutants import AREAS, Mutant, change_of
from bench.report import RESULTS, Row, publish

ROOT = Path(__file__).parents[1]
SURVIVORS = ROOT / "bench" / "mutant_survivors.json"


def main() -> int:
    arguments = _arguments()
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    work = arguments.work or Path(tempfile.mkdtemp(prefix="mutants-", dir="/dev/shm"))
    tree, results = work / "tree", work / "results.jsonl"
    skip = shutil.ignore_patterns(".git", "node_modules", "__pycache__", ".hypothesis", ".mypy_cache")
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(ROOT, tree, symlinks=True, ignore=skip)
    if not (work / "sample.json").exists():
        drawn = lib_mutants.sample(tree, arguments.sample, arguments.seed)
        (work / "sample.json").write_text(json.dumps([asdict(mutant) for mutant in drawn]))
    mutants = [Mutant(**each) for each in json.loads((work / "sample.json").read_text())]
    lines, chosen_tests = work / "lines.json", ["-m", arguments.marks, *arguments.tests]
    if arguments.again or not lines.exists():
        files = sorted({file for files in lib_mutants.files_of(tree).values() for file in files})
        lib_mutant_tests.record(tree, files, chosen_tests, lines)
    tests = TestMap(**json.loads(lines.read_text()), budget_s=arguments.budget)
    lib_mutant_tests.preload(tests.modules)
    earlier = _read(results)
    again = ("survived", "again") if arguments.again else ("again",)
    order = [mutant for mutant in mutants if earlier.get(mutant.key, "again") in again]
    collected = ["-m", arguments.marks, *sorted({test.split("::")[0] for test in tests.seconds})]
    lib_mutant_tests.collect_and_fork(
        tree, collected, lambda session: _try_functions(session, tree, order, tests, results)
    )
    functions = _read(results)
    for number, mutant in enumerate(order):
        if functions.get(mutant.key, "again") == "again":
            _write(results, mutant, _outcome_of_tree(tree, mutant, tests, number))
    _publish(tree, mutants, _read(results), arguments.json)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.mutants", description=__doc__)
    parser.add_argument("--json", type=Path, default=RESULTS / "mutants.json", metavar="FILE")
    parser.add_argument("--sample", type=int, default=400)
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--again", action="store_true", help="run survivors again, also with new tests in TESTS")
    parser.add_argument("--marks", default="not slow and not exclusive", help="which tests may notice a change")
    parser.add_argument("--budget", type=float, default=10.0, help="CPU seconds of tests for one mutant")
    parser.add_argument("--work", type=Path, help="folder that keeps the copy of the tree and results between runs")
    parser.add_argument("tests", nargs="*", default=["tests"])
    return parser.parse_args()


def _read(results: Path) -> dict[str, str]:
    lines = results.read_text().splitlines() if results.exists() else []
    return dict(line.rsplit("\t", 1) for line in lines)


def _write(results: Path, mutant: Mutant, outcome: str) -> None:
    with results.open("a") as file:
        file.write(f"{mutant.key}\t{outcome}\n")


def _try_functions(session: ForkingSession, tree: Path, mutants: list[Mutant], tests: TestMap, results: Path) -> None:
    """Run all mutants that change functions only; the others are to run "again", in a process of their own."""
    for mutant in mutants:
        path = tree / mutant.file
        source = path.read_text()
        chosen = tests.tests_of(mutant.file, source, mutant.line)
        with warnings.catch_warnings(action="ignore"):  # a mutant may compare with a literal by `is`
            old, new = (compile(text, str(path), "exec") for text in (source, mutant.text))
        codes = lib_mutant_tests.changed_functions(old, new)
        if not chosen or codes == []:
            outcome = "survived"
        else:
            outcome = session.outcome(codes, chosen, tests.limit(chosen)) if codes else ""
        _write(results, mutant, outcome or "again")


def _outcome_of_tree(tree: Path, mutant: Mutant, tests: TestMap, number: int) -> str:
    path = tree / mutant.file
    source, stat = path.read_text(), path.stat()
    chosen = tests.tests_of(mutant.file, source, mutant.line)
    try:
        path.write_text(mutant.text)
        os.utime(path, (stat.st_atime, stat.st_mtime + number + 1))  # compiled files are known by whole seconds
        return lib_mutant_tests.outcome_of_tree(tree, chosen, 15.0 + tests.limit(chosen))
    finally:
        path.write_text(source)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _publish(tree: Path, mutants: list[Mutant], done: dict[str, str], file: Path) -> None:
    listed = json.loads(SURVIVORS.read_text()) if SURVIVORS.exists() else []
    reasons = {(each["file"], each["change"]): each["reason"] for each in listed}
    survivors = []
    for mutant in mutants:
        if done[mutant.key] == "survived":
            change = change_of(tree, mutant)
            about = {"file": mutant.file, "line": mutant.line, "change": change}
            survivors.append({**about, "reason": reasons.get((mutant.file, change), "")})
    SURVIVORS.write_text(json.dumps(survivors, indent=1) + "\n")
    publish("mutants", rows([(mutant, done[mutant.key]) for mutant in mutants]), file)


def rows(chosen: list[tuple[Mutant, str]]) -> list[Row]:
    """Return one row for all mutants and one for each area."""
    made = []
    for area in (None, *AREAS):
        outcomes = Counter(outcome for mutant, outcome in chosen if area in (None, mutant.area))
        total = outcomes.total()
        if total:
            share = 100 * (total - outcomes["survived"]) / total
            parts = ", ".join(f"{word} {outcomes[word]}" for word in ("killed", "timeout", "survived"))
            made.append(
                Row(
                    claim=f"mutants killed, {area or 'all areas'}",
                    figure=round(share, 1),
                    unit="%",
                    n=total,
                    target="" if area else ">= 85",
                    holds=None if area else share >= 85,
                    kind="live",
                    note=parts,
                )
            )
    return made


if __name__ == "__main__":
    sys.exit(main())
