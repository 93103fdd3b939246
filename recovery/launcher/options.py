"""What ``mainstay run`` was asked for: torchrun's common options and our own, checked once, named when wrong.

OptionsError(ValueError)   one line that says which option is wrong and why
"""

from __future__ import annotations

import argparse
import hashlib
import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, NoReturn

from probes.words import check_name
from recovery import scheme
from recovery.cadence import NODE_MTBF_HOURS
from recovery.deal import Dealing, OnLoss
from recovery.scheme import Scheme

AUTO: Final = -(1 << 40)
"""What ``auto`` is read as: no number that anybody would type."""
AUTO_PARITY: Final = 10
AUTO_DISK: Final = 20
"""Steps between saves until one was measured: enough for a median step time, few enough to learn soon."""
_SHAPE: Final = "that mainstay.init() forms where the script names none; so that mainstay reshape can change it later"
_DISK_COPIES: Final = "of equal data-parallel replicas write so many, to a directory that all nodes share; 0: all"
_CHECKPOINTS: Final = "where --disk-every and every last save write, and --resume reads"
_RESUME: Final = "go on from the newest whole step of an earlier run: latest, its id, or auto (start if there is none)"
_PROTECT: Final = "against the loss of nodes: none, xor, rs:T (any T of a group), copies:M (M - 1 of a group)"
_DOMAIN: Final = "what this node (or, on node 0, NODE) fails together with; repeatable. Groups outlive any one domain"
_ON_TAINT: Final = "after a late verdict that a node computes wrongly: report the tainted steps, or go back before them"
TAINT_KEEP: Final = 8
"""More files of each rank where tainted steps are given up: with half an hour between saves, four hours."""
_ON_SICK: Final = "report: say what is sick; replay: also have all ranks replay, and replace who computes other bits"
_QUORUM: Final = (
    "launchers that must agree to another coordinator when it is lost; by default the majority of --nnodes, which with "
    "two nodes means that node 0 goes on without node 1, and never the other way round"
)
_DOOR: Final = "--launcher-endpoint"
_LAUNCHER_ENDPOINT: Final = "HOST:PORT where launchers reach this one, if not at its own address; it listens on PORT"
_ON_HANG: Final = "report: say which ranks hang, with their stacks; recover: also end and replace them"
_ON_LOSS: Final = "without warm standbys: wait, drop replicas, reroute work, reinstantiate pipelines, or the cheapest"
_SHARD_SAVE: Final = "each data-parallel replica saves its part of what all hold alike; the same on all nodes"
DIGESTS_APART: Final = 50
"""Epochs between digests of parameters (``recovery.sdk.values``): so late replicas are seen to differ."""
TOKEN_VARIABLE: Final = "MAINSTAY_JOB_TOKEN"  # noqa: S105 - the name of a variable, not a token


class OptionsError(ValueError):
    """Bad input; the message is one line for the person who typed it."""


class OnHang(StrEnum):
    """What follows when the coordinator is sure that ranks hang.

    ``report`` is the default: a hang is often the script's own (a mismatched collective comes again after every
    recovery and uses up ``--max-restarts``), a stuck process is the evidence of what stuck it, and whoever attaches a
    debugger to a rank would see it killed. ``recover`` is for runs that nobody watches.
    """

    REPORT = "report"
    RECOVER = "recover"


class OnSick(StrEnum):
    """What follows when values are sick: replicas that differ, NaN, spikes of the loss.

    ``report`` is the default: replays cost the time of some thirty steps and those since the last sound snapshot.
    """

    REPORT = "report"
    REPLAY = "replay"


class OnTaint(StrEnum):
    """What happens when a node turns out to have computed wrongly for some time: told, or steps are given up."""

    REPORT = "report"
    RESTORE = "restore"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """One node's launcher."""

    nnodes: int
    node_rank: int
    nproc: int
    host: str
    """Where the coordinator listens (on node rank 0) or is found (elsewhere)."""
    port: int
    node: str
    job: str
    token: str
    spares: int
    preload: tuple[str, ...]
    parity_every: int
    protect: Scheme = field(default_factory=Scheme)
    domain: str = ""
    """What this node fails together with; empty: unknown."""
    domains: tuple[tuple[str, str], ...] = ()
    """(node, domain), which outdo what the nodes say themselves."""
    disk_every: int
    checkpoint_dir: Path | None
    max_restarts: int
    state_dir: Path
    service: str | None
    service_token: str
    join_seconds: float
    ready_seconds: float
    node_seconds: float
    on_loss: OnLoss = OnLoss.WAIT
    deal: Dealing = Dealing.EVEN
    on_hang: OnHang = OnHang.REPORT
    on_sick: OnSick = OnSick.REPORT
    on_taint: OnTaint = OnTaint.REPORT
    dp: int = 0
    """Data-parallel size that scripts are told; 0: none."""
    pp: int = 0
    """Pipeline stages, likewise."""
    shard_save: bool = False
    """Each of several data-parallel replicas saves a part of what all hold alike."""
    replay_every: int = 0
    """Steps between replays that nothing calls for; 0: none."""
    resume: str | None = None
    """``latest``, ``auto`` (the same, or from the start where there is nothing), or a run; None: from the start."""
    disk_copies: int = 0
    """Of equal data-parallel replicas so many go to disk; 0: all."""
    disk_auto: bool = False
    """How often is learned from what a save costs and how often nodes fail; ``disk_every`` is where it begins."""
    parity_auto: bool = False
    mtbf_hours: float = NODE_MTBF_HOURS
    quorum: int = 1
    """Launchers that must agree to another coordinator."""
    launcher_endpoint: tuple[str, int] | None = None
    """Where other launchers reach this one; None: at its own address and any port."""
    script: str
    module: bool
    argv: tuple[str, ...]

    @property
    def disk_keep(self) -> int:
        """Files of each rank: more where a sick device may be noticed late, so that one is from before."""
        reach = max(DIGESTS_APART if self.on_sick is OnSick.REPLAY else 0, self.replay_every)
        older = TAINT_KEEP if self.on_taint is OnTaint.RESTORE else 0
        return 2 + max(older, -(-reach // self.disk_every) if self.disk_every else 0)

    @property
    def world_size(self) -> int:
        return self.nnodes * self.nproc


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise OptionsError(message)


def parse(arguments: Sequence[str]) -> RunOptions:
    """Read the command line.

    Raises:
        OptionsError: what is wrong, in one line.
    """
    return _checked(build_parser().parse_args(list(arguments)))


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="mainstay run",
        description="A training script under protection: a lost rank comes back, the others stay alive.",
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _torchrun_options(parser)
    _own_options(parser)
    parser.add_argument("script", help="the training script (with -m: the module)")
    parser.add_argument("script_args", nargs=argparse.REMAINDER, help="arguments of the script")
    return parser


def _every(text: str) -> int:
    try:
        return AUTO if text == "auto" else int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of steps nor auto") from error


def _both(name: str) -> tuple[str, str]:
    """Torchrun takes both spellings."""
    return f"--{name}", f"--{name.replace('-', '_')}"


def _torchrun_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("as torchrun has them").add_argument
    add("--nnodes", type=int, default=1, help="number of nodes")
    add(*_both("node-rank"), type=int, default=0, help="number of this node; node 0 coordinates")
    add(*_both("nproc-per-node"), type=int, default=1, help="ranks on each node")
    add(*_both("rdzv-endpoint"), default=None, help="HOST:PORT of node 0's coordinator; port 0: any (one node only)")
    add(*_both("max-restarts"), type=int, default=10, help="recoveries before the job is given up")
    add("-m", "--module", action="store_true", help="the script is a module")
    add("--standalone", action="store_true", help="one node; what happens anyway without --nnodes")


def _own_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("Mainstay's own").add_argument
    add("--job-id", default=None, help="name of the job; the same on all nodes")
    add("--node-name", default=None, help="name of this node; by default its host name")
    add("--spares", type=int, default=1, help="warm standby processes, and ranks of lost nodes that fit here")
    add("--preload", action="append", default=[], metavar="MODULE", help="import it before any rank starts; repeatable")
    add("--parity-every", type=_every, default=10, help="protect over the nodes every so many steps; 0: never; or auto")
    add("--protect", default="xor", metavar="SCHEME", help=_PROTECT)
    add("--group-size", type=int, default=None, help="nodes of a parity group at most; 8, or what the scheme needs")
    add("--domain", action="append", default=[], metavar="[NODE=]RACK", help=_DOMAIN)
    add("--dp", type=int, default=0, help=f"data-parallel size {_SHAPE}")
    add("--pp", type=int, default=0, help="pipeline stages, likewise")
    add("--shard-save", action="store_true", help=_SHARD_SAVE)
    add("--disk-every", type=_every, default=0, help="save to --checkpoint-dir every so many steps; 0: never; or auto")
    add("--checkpoint-dir", type=Path, default=None, help=_CHECKPOINTS)
    add("--disk-copies", type=int, default=0, help=_DISK_COPIES)
    add("--resume", default=None, metavar="RUN", help=_RESUME)
    add("--mtbf", type=float, default=NODE_MTBF_HOURS, help="hours between failures of one node, for auto")
    add("--token-file", type=Path, default=None, help=f"file with the job's secret; or set {TOKEN_VARIABLE}")
    add("--service", default=None, help="URL of the control plane; without it events only go to the state directory")
    add("--service-token-file", type=Path, default=None, help="file with the token for --service")
    add("--state-dir", type=Path, default=None, help="events.jsonl, job.json and spools")
    add("--join-timeout", type=float, default=300.0, help="seconds to wait for all nodes at the start")
    add("--ready-timeout", type=float, default=60.0, help="seconds until a survivor that does not answer is replaced")
    add("--quorum", type=int, default=None, help=_QUORUM)
    add(_DOOR, default=None, help=_LAUNCHER_ENDPOINT)
    add("--node-timeout", type=float, default=10.0, help="seconds of silence after which a node is lost")
    add("--on-sick", choices=[value.value for value in OnSick], default=OnSick.REPORT.value, help=_ON_SICK)
    add("--on-taint", choices=[value.value for value in OnTaint], default=OnTaint.REPORT.value, help=_ON_TAINT)
    add("--replay-every", type=int, default=0, help="replay also every so many steps, unasked; 0: never")
    add("--on-loss", choices=[value.value for value in OnLoss], default=OnLoss.WAIT.value, help=_ON_LOSS)
    add("--deal", choices=[d.value for d in Dealing], default=Dealing.EVEN.value, help="micro-batches to replicas")
    add("--on-hang", choices=[value.value for value in OnHang], default=OnHang.REPORT.value, help=_ON_HANG)


def _checked(found: argparse.Namespace) -> RunOptions:
    service_token = _read_token(found.service_token_file, "--service-token-file")
    job = found.job_id or f"job-{secrets.token_hex(4)}"
    host, port = _endpoint(found.rdzv_endpoint, found.nnodes)
    options = RunOptions(
        nnodes=found.nnodes,
        node_rank=found.node_rank,
        nproc=found.nproc_per_node,
        host=host,
        port=port,
        node=found.node_name or socket.gethostname().split(".")[0] or "localhost",
        job=job,
        token=_job_token(found.token_file, service_token, job, found.nnodes),
        spares=found.spares,
        preload=tuple(found.preload),
        parity_every=AUTO_PARITY if found.parity_every == AUTO else found.parity_every,
        protect=_scheme(found.protect, found.group_size),
        domain=next((text for text in reversed(found.domain) if "=" not in text), ""),
        domains=_domains(found.domain),
        disk_every=AUTO_DISK if found.disk_every == AUTO else found.disk_every,
        checkpoint_dir=found.checkpoint_dir,
        max_restarts=found.max_restarts,
        state_dir=found.state_dir or state_directory(job),
        service=found.service,
        service_token=service_token,
        join_seconds=found.join_timeout,
        ready_seconds=found.ready_timeout,
        node_seconds=found.node_timeout,
        quorum=found.nnodes // 2 + 1 if found.quorum is None else found.quorum,
        launcher_endpoint=None if (door := found.launcher_endpoint) is None else _host_and_port(_DOOR, door),
        on_loss=OnLoss(found.on_loss),
        deal=Dealing(found.deal),
        on_hang=OnHang(found.on_hang),
        on_sick=OnSick(found.on_sick),
        on_taint=OnTaint(found.on_taint),
        replay_every=found.replay_every,
        resume=found.resume,
        disk_copies=found.disk_copies,
        disk_auto=found.disk_every == AUTO,
        parity_auto=found.parity_every == AUTO,
        mtbf_hours=found.mtbf,
        dp=found.dp,
        pp=found.pp,
        shard_save=found.shard_save,
        script=found.script,
        module=found.module,
        argv=tuple(found.script_args),
    )
    _refuse_nonsense(options, named=found.job_id is not None)
    return options


def _refuse_nonsense(options: RunOptions, *, named: bool) -> None:
    problems = {
        "--nnodes must be at least 1": options.nnodes < 1,
        "--nproc-per-node must be at least 1": options.nproc < 1,
        f"--node-rank must be from 0 to {options.nnodes - 1}": not 0 <= options.node_rank < options.nnodes,
        "--spares, --parity-every, --disk-every and --max-restarts may not be negative": min(
            options.spares, options.parity_every, options.disk_every, options.max_restarts
        )
        < 0,
        "time-outs must be positive": min(options.join_seconds, options.ready_seconds, options.node_seconds) <= 0,
        "--shard-save leaves replays nothing to compare with: not with --on-sick replay or --replay-every": (
            options.shard_save and (options.on_sick is OnSick.REPLAY or options.replay_every > 0)
        ),
        "--shard-save leaves no replica that could go on alone: not with --on-loss drop or reroute": (
            options.shard_save and options.on_loss is not OnLoss.WAIT
        ),
        "--shard-save and --checkpoint-dir exclude each other: the disk level writes whole states": (
            options.shard_save and options.checkpoint_dir is not None
        ),
        f"--dp and --pp go together, and their product divides the {options.world_size} ranks": (
            (options.dp, options.pp) != (0, 0)
            and (min(options.dp, options.pp) < 1 or options.world_size % (options.dp * options.pp) != 0)
        ),
        f"--quorum must be from 1 to {options.nnodes}": not 1 <= options.quorum <= options.nnodes,
        "--replay-every may not be negative": options.replay_every < 0,
        "--disk-every needs --checkpoint-dir": options.disk_every > 0 and options.checkpoint_dir is None,
        "--on-loss reinstantiate needs --checkpoint-dir": options.on_loss is OnLoss.REINSTANTIATE
        and options.checkpoint_dir is None,
        "--disk-copies may not be negative": options.disk_copies < 0,
        "--resume needs --checkpoint-dir": options.resume is not None and options.checkpoint_dir is None,
        "--mtbf is a number of hours above 0": not options.mtbf_hours > 0.0,
        "--job-id is needed when there are several nodes": options.nnodes > 1 and not named,
        f"script {options.script} is not there": not options.module and not Path(options.script).is_file(),
    }
    for problem, holds in problems.items():
        if holds:
            raise OptionsError(problem)
    for value, what in ((options.job, "--job-id"), (options.node, "--node-name")):
        try:
            check_name(value, what)
        except ValueError as error:
            raise OptionsError(str(error)) from error


def _scheme(text: str, group_size: int | None) -> Scheme:
    try:
        return scheme.parse(text, group_size)
    except ValueError as error:
        raise OptionsError(f"--protect, --group-size: {error}") from error


def _domains(given: Sequence[str]) -> tuple[tuple[str, str], ...]:
    pairs = [text.partition("=") for text in given]
    for node, equals, domain in pairs:
        if not node or (equals and not domain):
            raise OptionsError(f"--domain {node}{equals}{domain} must look like RACK or NODE=RACK")
    return tuple((node, domain) for node, equals, domain in pairs if equals)


def _endpoint(text: str | None, nnodes: int) -> tuple[str, int]:
    if text is None:
        if nnodes > 1:
            raise OptionsError("--rdzv-endpoint HOST:PORT is needed when there are several nodes")
        return "127.0.0.1", 0
    host, port = _host_and_port("--rdzv-endpoint", text, 0)
    if port == 0 and nnodes > 1:
        raise OptionsError("--rdzv-endpoint needs a port that all nodes know")
    return host, port


def _host_and_port(option: str, text: str, lowest: int = 1) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not lowest <= int(port) < 65536:
        raise OptionsError(f"{option} {text!r} must look like HOST:PORT")
    return host.strip("[]"), int(port)


def _job_token(path: Path | None, service_token: str, job: str, nnodes: int) -> str:
    """The secret that the job's processes show one another."""
    given = _read_token(path, "--token-file") or os.environ.get(TOKEN_VARIABLE, "")
    if given:
        return given
    if service_token:  # all nodes have it; the job's own secret must not reveal it
        return hashlib.blake2b(job.encode(), key=service_token.encode()[:64], digest_size=16).hexdigest()
    if nnodes > 1:
        raise OptionsError(f"several nodes need a common secret: give --token-file or set {TOKEN_VARIABLE}")
    return secrets.token_hex(16)


def _read_token(path: Path | None, option: str) -> str:
    if path is None:
        return ""
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionsError(f"{option} {path} cannot be read: {error}") from error
    if not text:
        raise OptionsError(f"{option} {path} is empty")
    return text


def state_directory(job: str) -> Path:
    """Where a launcher of ``job`` keeps its files if nobody says otherwise."""
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "mainstay" / "jobs" / job
