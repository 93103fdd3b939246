"""The page of all measured claims, from ``bench/results/*.json``."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from docs.generate.markdown import page, sentence, table

_HEAD = ("status", "claim", "measured", "target", "kind", "n", "baseline", "note")


def benchmarks(folder: Path) -> str:
    """Return the page of all claims; unmet claims come first and in their own section."""
    results = {
        file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("results/*.json"))
    }
    claims = [claim for each in results.values() for claim in each]
    met, unmet = (sum(claim["holds"] is state for claim in claims) for state in (True, False))
    summary = table(
        ("status", "claims"),
        [("✓ met", met), ("✗ **not met**", unmet), ("– no target", len(claims) - met - unmet), ("total", len(claims))],
    )
    failed = [
        (f"[{name}](#{name})", *_row(claim)[1:])
        for name, each in results.items()
        for claim in each
        if claim["holds"] is False
    ]
    parts = [summary, "## Claims that are not met", table(("benchmark", *_HEAD[1:]), failed) or "All claims are met."]
    for name, each in results.items():
        program = folder / f"{name}.py"
        source = (
            f"`python -m bench.{name}`"
            if program.exists()
            else "The program that wrote this file has another name now."
        )
        about = sentence(ast.get_docstring(ast.parse(program.read_text(encoding="utf-8")))) if program.exists() else ""
        parts.append("\n\n".join(part for part in (f"## {name}", source, about, table(_HEAD, map(_row, each))) if part))
    about = (
        "Every measured claim, met or not. *Live* means real processes on one shared virtual machine with 2 cores and "
        "no GPU. *Replayed* means recorded data; *simulated* means generated data. `make bench` runs all programs but "
        "`bench.soak`, which takes two hours."
    )
    return page("Benchmarks", about, *parts)


def _row(claim: dict[str, Any]) -> Iterable[object]:
    status = {True: "✓ met", False: "✗ **not met**", None: "–"}[claim["holds"]]
    figure = claim["figure"]
    number = f"{figure:.4g}" if isinstance(figure, float) else "–" if figure is None else str(figure)
    measured = f"{number} {claim['unit']}".strip()
    target = claim["target"].replace("<=", "≤").replace(">=", "≥")
    texts = (claim["claim"], measured, target)
    return [
        status,
        *map(sentence, texts),
        claim["kind"],
        claim["n"],
        *map(sentence, (claim["baseline"], claim["note"])),
    ]
