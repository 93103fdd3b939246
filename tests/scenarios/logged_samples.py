"""``docs/examples/resumable_data.py``, which says what samples it took, and is slow as long as a file is there.

``SAMPLES_DIRECTORY`` gets a file for each process, with a line for each micro-batch that it read.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "examples"))
import resumable_data

_taken = resumable_data.mainstay.ResumableSampler.step
_OUT = Path(os.environ["SAMPLES_DIRECTORY"]) / f"{time.time_ns()}-{os.getpid()}.jsonl"


def _step(sampler: Any, loader: Any, numbers: Iterable[int]) -> Iterator[tuple[int, Any]]:
    place = [sampler.epoch, sampler.position]
    for number, batch in _taken(sampler, loader, numbers):
        line = {"place": place, "number": number, "samples": batch["id"].tolist(), "time": time.time()}
        with _OUT.open("a") as file:
            file.write(json.dumps(line) + "\n")
        if Path(os.environ["PACED_WHILE_FILE"]).exists():
            time.sleep(0.05)  # so that a kill comes when samples of the step were taken
        yield number, batch


resumable_data.mainstay.ResumableSampler.step = _step

if __name__ == "__main__":
    resumable_data.main()
