"""The ``mainstay`` command: a table of commands, each imported only when it runs.

``mainstay node`` works without the packages of the service, and ``mainstay serve`` works without torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from mainstay import __version__

if TYPE_CHECKING:  # the commands of training nodes and node daemons work without cyclopts
    from cyclopts import CycloptsError
    from rich.text import Text

# command: (module and object, the extra it needs, one line of help). A test compares ``--help`` with this table.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "demo": ("mainstay.service.demo.cli:demo", "service,train", "Run a local demo: train, kill a rank, recover."),
    "up": ("mainstay.service.cli:up", "service", "Run all services locally."),
    "serve": ("mainstay.service.cli:serve", "service", "Run the control plane."),
    "worker": ("mainstay.service.cli:worker", "service", "Run a Celery worker."),
    "cluster": ("mainstay.service.cluster.cli:cluster", "service", "Show the processes of a service."),
    "backup": ("mainstay.service.backup.cli:backup", "service", "Save the state of the service."),
    "restore": ("mainstay.service.backup.cli:restore", "service", "Restore the state of the service from a backup."),
    "config": ("mainstay.service.config.cli:config", "service", "Check and show the settings of the service."),
    "login": ("mainstay.service.commands.cli:login", "analysis", "Store a service and a token for later commands."),
    "status": ("mainstay.service.commands.cli:status", "analysis", "Show what is broken and which jobs run."),
    "nodes": ("mainstay.service.commands.cli:nodes", "analysis", "List nodes."),
    "jobs": ("mainstay.service.commands.lists_cli:jobs", "analysis", "List jobs."),
    "devices": ("mainstay.service.commands.lists_cli:devices", "analysis", "List GPUs and network ports."),
    "findings": ("mainstay.service.commands.lists_cli:findings", "analysis", "List findings."),
    "report": ("mainstay.service.commands.lists_cli:report", "analysis", "Show what failures cost."),
    "incidents": ("mainstay.service.commands.cli:incidents", "analysis", "List incidents."),
    "ack": ("mainstay.service.commands.cli:ack", "analysis", "Acknowledge an incident."),
    "drain": ("mainstay.service.commands.node_moves_cli:drain", "analysis", "Take nodes out of service."),
    "undrain": ("mainstay.service.commands.node_moves_cli:undrain", "analysis", "Return drained nodes to service."),
    "silences": ("mainstay.service.commands.cli:silences", "analysis", "List silences, or end one."),
    "silence": ("mainstay.service.commands.cli:silence", "analysis", "Send no messages about some findings."),
    "notifications": (
        "mainstay.service.notifications.cli:notifications",
        "service",
        "Configure messages about incidents.",
    ),
    "token": ("mainstay.service.auth.cli:token", "service", "Manage tokens."),
    "user": ("mainstay.service.auth.user_cli:user", "service", "Manage users."),
    "team": ("mainstay.service.auth.user_cli:team", "service", "Manage teams: people who share jobs."),
    "node": ("mainstay.probes.cli:node", "node", "Run the node daemon."),
    "relay": ("mainstay.probes.cli:relay", "relay", "Run a rack relay."),
    "doctor": ("mainstay.probes.cli:doctor", "node", "Check this machine for missing requirements."),
    "validate": ("mainstay.detectors.validation.cli:validate", "bench", "Benchmark this machine."),
    "criteria": ("mainstay.detectors.validation.cli:criteria", "analysis", "Learn and apply validation criteria."),
    "superbench": (
        "mainstay.detectors.superbench.cli:superbench",
        "analysis",
        "Find defective nodes in SuperBench results.",
    ),
    "policy": ("mainstay.detectors.policy.cli:policy", "analysis", "Show, test, and upload XID policies."),
    "record": ("mainstay.detectors.recording.cli:record", "recordings", "Record telemetry."),
    "replay": ("mainstay.detectors.recording.cli:replay", "recordings", "Run detectors on a recording."),
    "generate": (
        "mainstay.detectors.generator.cli:generate_command",
        "recordings",
        "Generate a recording of a training run with a known fault.",
    ),
    "select": ("mainstay.detectors.selector.cli:select", "analysis", "Choose benchmarks for nodes."),
    "analyze-hang": (
        "mainstay.detectors.hang.cli:analyze_hang",
        "analysis",
        "Find the ranks that block a job from PyTorch flight-recorder dumps.",
    ),
    "localize": (
        "mainstay.detectors.localize.cli:localize",
        "analysis",
        "Find the bad GPU, NIC, node, cable, or switch from pairwise measurements.",
    ),
    "run": ("mainstay.recovery.node.main:main", "train", "Launch a protected training job."),
    "agent": ("mainstay.recovery.agent.server:main", "train", "Run a snapshot agent."),
    "accept-gpu": (
        "mainstay.recovery.accept_gpu_cli:accept_gpu",
        "cli,node,train",
        "Check that Mainstay works on the GPUs of this node.",
    ),
    "job": ("mainstay.recovery.job_cli:app", "cli,train", "Move, restore, or give up ranks, reshape, or save."),
    "checkpoint": (
        "mainstay.recovery.checkpoint_cli:checkpoint",
        "cli,train",
        "List, verify, inspect, convert, pin, and upload checkpoints.",
    ),
    "replay-job": ("mainstay.recovery.replay_cli:replay_job", "cli,train", "Replay the recorded events of a job."),
    "plan": ("mainstay.recovery.plan_cli:plan", "analysis", "Estimate the cost of each recovery strategy."),
    "simulate": ("mainstay.recovery.simulate.cli:simulate", "analysis", "Simulate recovery policies."),
    "completion": ("mainstay.cli:completion", "cli", "Print the completion script of a shell."),
}


def build_app(names_only: Callable[[str], bool] | None = None) -> Any:
    """Build the command tree; each command loads when it runs. ``names_only`` selects those without their options."""
    from cyclopts import App

    about = "Monitor, validate, and recover large training clusters."
    app = App(name="mainstay", help=about, version=__version__, error_formatter=_usage_error)
    for name, (path, _extra, purpose) in COMMANDS.items():
        if names_only is not None and names_only(name):
            app.command(App(name=name, help=purpose))
        else:
            app.command(path, name=name, help=purpose)
    return app


def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print a script with which a shell completes commands and options.

    Args:
        shell: bash, zsh, or fish.
    """
    print(build_app(_completes_by_name).generate_completion(shell=shell))


def _completes_by_name(command: str) -> bool:
    """Whether the options of a command cannot be listed: argparse reads them, or its extra is not installed."""
    try:
        import_module(COMMANDS[command][0].partition(":")[0])
    except ImportError:
        return True
    return command in PLAIN


def _usage_error(error: CycloptsError) -> Text:
    """Return one line, as for any other bad input, with the command that lists what is possible."""
    from cyclopts import UnusedCliTokensError
    from rich.text import Text

    command = " ".join(("mainstay", *(error.command_chain or ())))
    problem = str(error)
    if isinstance(error, UnusedCliTokensError):
        problem = f"unexpected argument {' '.join(error.unused_tokens or ())}."
    problem = problem.removeprefix(f'Command "{" ".join(error.command_chain or ())}" ')
    return Text(f"{command}: {problem} Run '{command} --help'.", no_wrap=True, overflow="ignore")


# These commands parse their own arguments with argparse: training nodes and node daemons need no cyclopts.
PLAIN = frozenset({"run", "agent", "node", "relay", "doctor"})


def main() -> None:
    """Run one command; a missing extra or invalid input gives one clear line and a non-zero exit code."""
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    try:
        if command in PLAIN:
            module, _, name = COMMANDS[command][0].partition(":")
            sys.exit(getattr(import_module(module), name)(sys.argv[2:]))
        build_app(lambda name: name != command)(sys.argv[1:])  # no other command may lack an extra here
    except ImportError as error:
        missing = error if isinstance(error, ModuleNotFoundError) else error.__cause__  # cyclopts wraps it
        if not isinstance(missing, ModuleNotFoundError):
            raise
        extra = COMMANDS.get(command, ("", "cli", ""))[1]
        fix = "install the build for your driver" if missing.name == "torch" else f"pip install 'mainstay[{extra}]'"
        print(f"mainstay {command}: {missing.name} is not installed; {fix}", file=sys.stderr)
        sys.exit(3)
    except KeyboardInterrupt:
        sys.exit(130)
