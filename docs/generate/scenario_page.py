"""The page of scenario files: what ``mainstay plan`` and ``mainstay simulate`` read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from docs.generate.markdown import code, default_text, field_table, page, sentence, table
from mainstay.detectors.reference import field_descriptions
from mainstay.recovery import planner_input
from mainstay.recovery.cost_inputs import FaultKind, ProgramCapability
from mainstay.recovery.cost_model.allocation import Tenant
from mainstay.recovery.cost_model.redundancy import RedundancyScheme
from mainstay.recovery.cost_model.resources import ScalingSample
from mainstay.recovery.scenario_assumptions import ScenarioAssumptions
from mainstay.recovery.scenario_file import Epochs, Grid, Groups, Scenario
from mainstay.recovery.simulate import scenario as simulation

_FORMS: Final = {
    "job": "text",
    "generation": "integer",
    "step": "integer",
    "step_seconds": "number",
    "ranks": "object `Grid`, or array of `RankPlacement`",
    "state_bytes": "integer for all ranks, or array with one integer per rank",
    "failed_ranks": "array of ranks",
    "lost_nodes": "array of node names",
    "live": "epoch of all survivors, or object from rank to epoch",
    "slots": "object `Epochs` (every rank's node holds them), or array of `HeldSlot`",
    "parity": "object `Groups` (every member's node holds a row), or array of `HeldParity`",
    "disk": "object `Epochs` (every node reads them for every rank), or array of `HeldCheckpoint`",
    "standbys": "object from node to count",
    "cold": "object from node to count",
    "replicated": "boolean",
    "costs": "object `MachineCosts`",
    "cost_inputs": "object `ScenarioAssumptions`; needed to evaluate every strategy",
}
"""JSON form of each field. A field of ``Scenario`` that is missing here fails the build of the page."""

_ENTRIES: Final = (
    Grid,
    planner_input.RankPlacement,
    Epochs,
    planner_input.HeldSlot,
    Groups,
    planner_input.HeldParity,
    planner_input.HeldCheckpoint,
    planner_input.MachineCosts,
    ScenarioAssumptions,
    Tenant,
    RedundancyScheme,
    ScalingSample,
)


_ABOUT: Final = """\
`mainstay plan FILE` reads one JSON object, or TOML from a file that ends in `.toml`
([node-loss.toml](../examples/node-loss.toml)). An unknown field, a key given twice, and values that contradict one
another are errors."""


def scenario_files(examples: Path) -> str:
    """Return the page of scenario files."""
    described = field_descriptions(planner_input.PlannerInput)
    rows = [
        (code(name), _FORMS[name], "yes" if _is_required(name) else "no", sentence(described.get(name)))
        for name in Scenario.__dataclass_fields__
    ]
    parts = [
        f"## Failure scenarios\n\n{_ABOUT}",
        table(("field", "form", "required", "description"), rows),
        "### Commented example",
        "JSON has no comments: remove the `//` lines, or download [node-loss.json](../examples/node-loss.json).",
        f"```jsonc\n{commented(examples / 'node-loss.json')}\n```",
        "With a `Grid`, rank = (dp × PP + pp) × TP + tp, and each node gets an equal run of consecutive ranks.",
    ]
    parts += [f"### {entry.__name__}\n\n{sentence(entry.__doc__)}\n\n{field_table(entry)}" for entry in _ENTRIES]
    for kind, field in ((FaultKind, "fault"), (ProgramCapability, "able")):
        values = [(code(each.value), sentence(field_descriptions(kind).get(each.name))) for each in kind]
        parts.append(f"### Values of {field}\n\n{table(('value', 'meaning'), values)}")
    limits = {name: f"{low:g} to {high:g}" for name, (low, high) in simulation.LIMITS.items()}
    parts += [
        "## Simulations",
        "`mainstay simulate` has one option for each of these fields; `POST /v1/simulations` accepts them as JSON.",
        field_table(simulation.Scenario, limits=limits),
        f"### SimulatedPolicy\n\n{field_table(simulation.SimulatedPolicy, limits=limits)}",
        "## Traces",
        "`mainstay simulate --trace FILE` reads one change per line, by time: milliseconds, `add` or `remove`, node.",
        "An example is [node-trace.csv](../examples/node-trace.csv):",
        f"```text\n{(examples / 'node-trace.csv').read_text(encoding='utf-8')}```",
    ]
    about = "The files that describe a failure or a fleet to `mainstay plan` and `mainstay simulate`."
    return page("Scenario files", about, *parts)


def _is_required(name: str) -> bool:
    return default_text(Scenario.__dataclass_fields__[name]) == "*required*"


def commented(file: Path) -> str:
    """Return a scenario file with the description of each field above it as a ``//`` line."""
    described = field_descriptions(planner_input.PlannerInput)
    text = file.read_text(encoding="utf-8")
    lines = []
    for line in text.rstrip("\n").split("\n"):
        name = line.strip().partition('"')[2].partition('"')[0]
        if line.startswith('  "'):
            about = " ".join((described.get(name) or ScenarioAssumptions.__doc__ or "").split("\n\n")[0].split())
            lines.append(f"  // {about}")
        lines.append(line)
    assert json.loads("\n".join(line for line in lines if not line.lstrip().startswith("//"))) == json.loads(text)
    return "\n".join(lines)
