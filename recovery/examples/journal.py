"""What an example computed in each step, written on request: so that it can be checked that nothing is lost or doubled.

``--journal DIR`` makes every process append to ``DIR/rank-R.jsonl``, a line a step, when its gradients are exchanged
and the update is next::

    {"generation": 2, "step": 17, "layers": [0, 2], "micro_batches": [0, 1], "of": 4, "time": 1790000000.0}

A line says what went into a step, not that the step counted: it does if the next generation begins behind it.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Journal:
    """Of one process; without a directory it writes nothing."""

    directory: Path | None = None

    def write(self, rank: int, **line: Any) -> None:
        """Record one step.

        Args:
            rank: of this process.
            line: ``generation`` in which the step is made; ``step``, counted from 0; ``layers``, the first one that
                this rank computed and the one behind its last; ``micro_batches``, ids that it computed them for;
                ``of``, how many micro-batches the step has.

        Raises:
            OSError: the file cannot be written.
        """
        if self.directory is None:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        text = json.dumps(line | {"time": time.time()}) + "\n"
        with (self.directory / f"rank-{rank}.jsonl").open("ab", buffering=0) as file:
            file.write(text.encode())  # whole or not at all, also when the process is killed


def add_journal(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--journal", type=_journal, default=Journal(), help="directory for what each step computed")


def _journal(text: str) -> Journal:
    return Journal(Path(text))
