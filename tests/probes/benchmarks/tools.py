"""Programs that print what a test wants, in the place of those that ``mainstay.probes.benchmarks.external_tool``
runs."""

from __future__ import annotations

from pathlib import Path

from mainstay.probes.benchmarks.base import Device

GPUS = Device(kind="cuda", model="any", count=2)


def program(folder: Path, name: str, output: str, *, status: int = 0, complaint: str = "") -> str:
    """A shell script that notes its arguments in ``NAME.said``, prints and ends so. Returns its folder."""
    (folder / f"{name}.out").write_text(output)
    (folder / f"{name}.err").write_text(complaint)
    script = folder / name
    script.write_text(
        f'#!/bin/sh\necho "$@" >> "{folder}/{name}.said"\ncat "{folder}/{name}.out"\n'
        f'cat "{folder}/{name}.err" >&2\nexit {status}\n'
    )
    script.chmod(0o755)
    return str(folder)


def recorded_arguments(folder: Path, name: str) -> list[str]:
    """The arguments of each call."""
    return (folder / f"{name}.said").read_text().splitlines()
