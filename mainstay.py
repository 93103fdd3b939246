"""``mainstay``: the command line, and the few names a training script needs.

Every command lives beside the floor that it belongs to and is imported only when it runs, so ``mainstay node`` works
without the service's dependencies and ``mainstay serve`` without torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_SDK = {"GradientSum", "LayerSum", "Retry", "attach", "init", "watch"}


def __getattr__(name: str) -> Any:
    """Lend the training SDK's names: ``mainstay.init`` and its siblings are ``recovery.sdk``'s."""
    if name in _SDK:
        return getattr(import_module("recovery.sdk"), name)
    raise AttributeError(f"module 'mainstay' has no attribute {name!r}")


# command: (where it lives, the extra it needs, one line of help). A test holds ``--help`` against this table.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "demo": (
        "service.demo.cli:demo",
        "service,train",
        "The main job here: a protected run, a kill, a recovery.",
    ),
    "up": ("service.cli:up", "service", "Service, dashboard, worker, beat and this node's probe in one command."),
    "serve": ("service.cli:serve", "service", "The control plane on its own."),
    "worker": ("service.cli:worker", "service", "A Celery worker (and, with --beat, the scheduler)."),
    "token": ("service.cli:token", "service", "Create, list and revoke access tokens and join tokens."),
    "node": ("probes.cli:node", "node", "The node daemon: measures this machine and fetches its orders."),
    "doctor": ("probes.cli:doctor", "node", "What is missing on this machine and how to get it."),
    "validate": ("detectors.cli:validate", "train", "Benchmarks on this machine, a verdict per benchmark."),
    "criteria": ("detectors.cli:criteria", "node", "Learn criteria from result files; judge results by them."),
    "diagnose": (
        "detectors.superbench.cli:diagnose",
        "node",
        "SuperBench's results, rules and baseline in; defective nodes out.",
    ),
    "policy": ("detectors.policy.cli:policy", "node", "What GPU error codes mean; overrides checked, tried, pushed."),
    "record": ("detectors.recording.cli:record", "service", "What a service saw, as files that can be replayed."),
    "replay": ("detectors.recording.cli:replay", "service", "The detectors over a recording: what they find in it."),
    "select": ("detectors.selector.cli:select", "node", "Which checks nodes need before a job, and why."),
    "hangs": ("detectors.hangs_cli:hangs", "node", "Flight-recorder dumps in, the ranks that hold up the job out."),
    "localise": (
        "detectors.localise.cli:localise",
        "node",
        "What pairs of nodes measured in; the bad GPU, NIC, node, cable or switch out.",
    ),
    "run": ("recovery.cli:run", "train", "A training script under protection (torchrun's common options)."),
    "agent": ("recovery.cli:agent", "train", "The snapshot agent of one node (mainstay run starts its own)."),
    "reshape": ("recovery.cli:reshape", "train", "Train a running job on with other (dp, pp)."),
    "migrate": ("recovery.migrate_cli:migrate", "node", "Move a rank, or a node's ranks, of a running job elsewhere."),
    "checkpoint": (
        "recovery.checkpoint_cli:checkpoint",
        "train",
        "What jobs saved to disk: list, verify, export, import.",
    ),
    "plan": ("recovery.cli:plan", "train", "Price every recovery strategy for a described failure."),
    "simulate": (
        "recovery.simulate.cli:simulate",
        "node",
        "What ways of recovering keep of a run's time: random failures or a recorded trace.",
    ),
}


def build_app() -> Any:
    """The command tree; commands load when they run."""
    from cyclopts import App

    app = App(name="mainstay", help="Keeps large training runs standing.", version=__version__)
    for name, (path, _extra, about) in COMMANDS.items():
        app.command(path, name=name, help=about)
    return app


def main() -> None:
    """Entry point: a missing extra and bad input each give one clear line and a non-zero code."""
    try:
        build_app()()
    except ModuleNotFoundError as error:
        command = sys.argv[1] if len(sys.argv) > 1 else ""
        extra = COMMANDS.get(command, ("", "dev", ""))[1]
        print(f"mainstay {command}: {error.name} is not installed; pip install 'mainstay[{extra}]'", file=sys.stderr)
        sys.exit(3)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
