"""``mainstay localize PAIRS.jsonl``: find the bad GPU, NIC, node, cable, or switch from pairwise measurements.

This module reads the files; ``plan`` is the pure layer. Exit codes: 0 all parts are good, 1 a culprit is named,
4 no culprit is named and some parts stay unknown, 2 invalid input.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec
from cyclopts import Parameter

from mainstay.detectors.cli_errors import BAD_INPUT, AsJson, InputError, one_line, print_json, read_json
from mainstay.detectors.finding import join_names
from mainstay.detectors.localize import plan
from mainstay.detectors.localize.model import (
    LocalizationConfig,
    LocalizationState,
    LocalizationVerdict,
    PairOutcome,
    PairResult,
    Round,
)
from mainstay.detectors.localize.topology import Endpoint, FabricTopology, Host, Nic
from mainstay.probes.benchmarks.nccl_tests_output import read

GOOD: Final = 0
NAMED: Final = 1
NOTHING: Final = 4
_LARGEST: Final = 256 << 20
"""Bytes of a file: a million pairs."""
_SHOWN: Final = 12


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the file."""

    a: str | Endpoint
    b: str | Endpoint
    bandwidth: dict[str, float] | float | None = None
    """B/s, or message size in bytes → B/s."""
    seconds: dict[str, float] | float | None = None
    """Instead of it: the time a transfer took, or message size → time."""
    outcome: PairOutcome = PairOutcome.OK
    via: str = ""
    note: str = ""
    round: int = 0


@one_line("mainstay localize", {ValueError: BAD_INPUT, OSError: BAD_INPUT})
def localize(
    pairs: Path,
    /,
    *,
    topology: Path | None = None,
    known_good: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    min_slowdown: float = 0.05,
    as_json: AsJson = False,
) -> int:
    """Find the bad GPU, NIC, node, cable, or switch from pairwise measurements.

    Parameters
    ----------
    pairs
        Read measurements from this file: logs of nccl-tests, one after another, each a run on two nodes; or one JSON
        object per line: {"a": "n1", "b": "n2", "bandwidth":
        {"4194304": 4.6e10}} in B/s by message size ("seconds" instead: the duration). "outcome": "hung" for a transfer
        that did not end, "missing" for none. An end may be {"node": "n1", "nic": "mlx5_0", "gpu": "gpu0"}.
    topology
        Read the topology from this JSON file: {"nodes": [{"name": "n1", "nics": [{"name": "mlx5_0", "switches":
        ["leaf-1"]}], "gpus": ["gpu0"]}], "spines": {"leaf-1": ["spine-1", "spine-2"]}}. Without it the result names
        only nodes.
    known_good
        Trust this node, which passed its own check; repeatable.
    min_slowdown
        Name only slowdowns of at least this ratio.
    as_json
        Print only JSON on standard output.
    """
    results = list(_results(pairs))
    chart = _topology(topology, results)
    state = plan.start_localization(chart, known_good=known_good, settings=LocalizationConfig(slower=min_slowdown))
    state = msgspec.structs.replace(state, results=tuple(results), round=max(r.round for r in results))
    verdict = plan.verdict(state)
    step = plan.next_round(state)
    if as_json:
        further = step.pairs if isinstance(step, Round) else ()
        print_json({"verdict": verdict, "next": further})
    else:
        _show(state, verdict, step)
    if verdict.culprits:
        return NAMED
    return GOOD if not verdict.unknown else NOTHING


def _results(path: Path) -> Iterator[PairResult]:
    if not path.exists():
        raise InputError(f"{path} does not exist")
    if path.stat().st_size > _LARGEST:
        raise InputError(f"{path} is larger than {_LARGEST >> 20} MiB")
    content = path.read_bytes()
    if b"# Using devices" in content:
        yield from _nccl_tests(path, content.decode(errors="replace"))
        return
    found = False
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield _result(msgspec.json.decode(line, type=_Line))
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: {error}") from error
        found = True
    if not found:
        raise InputError(f"{path} holds no pair")


def _nccl_tests(path: Path, text: str) -> Iterator[PairResult]:
    """Message size over time of each run; one that did not end hung, and one with wrong values is refused."""
    for number, run in enumerate(text.split("# Using devices")[1:], start=1):
        nodes = sorted(set(re.findall(r"^#\s+Rank\s+\d+ .*? on\s+(\S+) device", run, re.MULTILINE)))
        if len(nodes) != 2:
            raise InputError(
                f"{path}, run {number}: a pair has two nodes, not {len(nodes)}: {join_names(nodes, _SHOWN)}"
            )
        a, b = map(Endpoint, nodes)
        if "Out of bounds values" not in run:
            yield PairResult(a=a, b=b, outcome=PairOutcome.HUNG, note=f"run {number} did not end")
            continue
        try:
            speeds = {str(size): size / row.seconds for size, row in read(run).items()}
            yield PairResult(a=a, b=b, bandwidth=speeds)
        except ValueError as error:
            raise InputError(f"{path}, run {number}: {error}") from error


def _result(line: _Line) -> PairResult:
    ends = [Endpoint(end) if isinstance(end, str) else end for end in (line.a, line.b)]
    speeds = {} if line.bandwidth is None else _by_size(line.bandwidth)
    for size, seconds in ({} if line.seconds is None else _by_size(line.seconds)).items():
        if not seconds > 0:
            raise InputError(f"a transfer takes more than {seconds} s")
        speeds.setdefault(size, max(1, int(size)) / seconds)
    return PairResult(
        a=ends[0], b=ends[1], via=line.via, outcome=line.outcome, bandwidth=speeds, note=line.note, round=line.round
    )


def _by_size(given: dict[str, float] | float) -> dict[str, float]:
    return dict(given) if isinstance(given, dict) else {"0": given}


def _topology(path: Path | None, results: Iterable[PairResult]) -> FabricTopology:
    """As the file has it, or the nodes of the pairs under one switch."""
    if path is not None:
        return read_json(path, FabricTopology)
    nics: dict[str, dict[str, str]] = {}
    for result in results:
        for end in (result.a, result.b):
            nics.setdefault(end.node, {}).setdefault(end.nic, end.gpu)
    return FabricTopology(
        nodes=tuple(
            Host(name=name, nics=tuple(Nic(name=nic) for nic in sorted(known)), gpus=_gpus(known))
            for name, known in sorted(nics.items())
        )
    )


def _gpus(known: dict[str, str]) -> tuple[str, ...]:
    """The GPU each NIC was first measured with; nothing where not every NIC has one of its own."""
    gpus = tuple(known[nic] for nic in sorted(known))
    return gpus if all(gpus) and len(set(gpus)) == len(gpus) else ()


def _show(state: LocalizationState, verdict: LocalizationVerdict, step: Round | LocalizationVerdict) -> None:
    from rich.console import Console  # a pipeline that asks for JSON does not pay for it
    from rich.markup import escape

    console = Console(highlight=False, emoji=False)  # the NIC x of a place reads :x:
    for culprit in verdict.culprits:
        console.print(f"[bold red]{escape(culprit.summary)}[/]")
        for one in culprit.evidence:
            speed = "hung" if one.ratio is None else f"{one.ratio:.0%}"
            console.print(f"    {escape(_end(one.a))} - {escape(_end(one.b))}: {speed}")
    if not verdict.culprits:
        slow = "No culprit found; some parts are unknown." if verdict.unknown else "No slow part: all pairs are alike."
        console.print(f"[bold]{slow}[/]")
    for name, why in list(verdict.unknown.items())[:_SHOWN]:
        console.print(f"[yellow]Unknown:[/] {escape(name)}: {escape(why)}")
    if len(verdict.unknown) > _SHOWN:
        console.print(f"[yellow]Unknown:[/] {len(verdict.unknown) - _SHOWN} more (--json lists them)")
    if isinstance(step, Round) and not verdict.settled:
        console.print(f"Measure next: {escape(join_names([_pair(p.a, p.b, p.via) for p in step.pairs], _SHOWN))}")
    scatter = "unknown" if verdict.noise is None else f"{verdict.noise:.1%}"
    console.print(
        f"[dim]{len(state.results)} pairs; {len(verdict.good)} nodes good; healthy pairs scatter by {scatter}[/]"
    )


def _end(place: Endpoint) -> str:
    return ":".join(filter(None, (place.node, place.nic, place.gpu)))


def _pair(a: Endpoint, b: Endpoint, via: str) -> str:
    return f"{_end(a)} - {_end(b)}" + (f" over {via}" if via else "")
