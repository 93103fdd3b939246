"""The options of ``mainstay run``: the common options of torchrun and Mainstay's own. ``parse`` checks them once."""

from __future__ import annotations

import argparse
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Final, NoReturn, get_args

from mainstay.probes.core_types import validate_name
from mainstay.recovery.admission import AdmissionPolicy
from mainstay.recovery.checkpoint.manifest import QUANTIZED, StepEncoding
from mainstay.recovery.job_certificates import Authority, job_tls
from mainstay.recovery.job_tls import JobTls
from mainstay.recovery.option_help import SHAPE, add_group
from mainstay.recovery.option_values import (
    AUTO,
    TOKEN_VARIABLE,
    OptionsError,
    find_job_token,
    parse_any_endpoint,
    parse_domains,
    parse_endpoint,
    parse_nnodes,
    parse_scheme,
    parse_service,
    parse_steps,
    parse_upload,
    read_token,
    require_endpoint,
    state_directory,
)
from mainstay.recovery.protection_scheme import ProtectionScheme, SchemeKind
from mainstay.recovery.save_intervals import NODE_MTBF_HOURS
from mainstay.recovery.work_assignment import AssignmentPolicy, LossPolicy

AUTO_PARITY: Final = 10
AUTO_DISK: Final = 20
"""Steps between saves until one was measured: enough for a median step time, few enough to learn soon."""
CORRUPTION_KEEP: Final = 8
"""More files of each rank with ``--on-corruption rollback``: with half an hour between saves, four hours."""
DIGESTS_APART: Final = 50
"""Epochs between digests of parameters (``mainstay.recovery.sdk.numerics``): so late replicas are seen to differ."""


class OnHang(StrEnum):
    """What follows when the coordinator is sure that ranks hang.

    ``recover`` is the default: the stacks are kept, a process that a debugger has stopped is left alone, and a hang
    that is the script's own occurs again until ``--max-restarts`` ends the job. ``report`` keeps the stuck processes.
    """

    REPORT = "report"
    RECOVER = "recover"


class NumericAnomalyPolicy(StrEnum):
    """What follows when values are abnormal: replicas that differ, NaN, spikes of the loss.

    ``report`` is the default: replays cost the time of some thirty steps and those since the last sound snapshot.
    """

    REPORT = "report"
    REPLAY = "replay"


class CorruptionPolicy(StrEnum):
    """What happens when a node has computed wrong results for some time: report the steps, or roll back before them."""

    REPORT = "report"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """One node's launcher."""

    nnodes: int
    node_rank: int
    nproc: int
    host: str
    """Where the coordinator listens (on node rank 0) or where launchers find it (on the other nodes)."""
    port: int
    node: str
    job: str
    token: str
    spares: int
    preload: tuple[str, ...]
    parity_every: int
    protection: ProtectionScheme = field(default_factory=ProtectionScheme)
    domain: str = ""
    """What this node fails together with; empty: unknown."""
    domains: tuple[tuple[str, str], ...] = ()
    """(node, domain) pairs that override what the nodes report."""
    disk_every: int
    checkpoint_dir: Path | None
    checkpoint_keep: int = 2
    """Newest complete steps."""
    checkpoint_keep_hours: float = 0.0
    """The first complete step of each period of so many hours is kept too; 0: none."""
    checkpoint_upload: str | None = None
    """URL of the place that complete steps are uploaded to."""
    upload_rate: float = 0.0
    """Bytes per second; 0: no limit."""
    max_restarts: int
    state_dir: Path
    record_events: Path | None = None
    """Directory for recordings of the coordinator's events; None: none are made."""
    service: str | None
    service_token: str
    admission: AdmissionPolicy = AdmissionPolicy.ENFORCE
    preflight: AdmissionPolicy = AdmissionPolicy.OFF
    join_seconds: float
    ready_seconds: float
    node_seconds: float
    on_loss: LossPolicy = LossPolicy.WAIT
    micro_batch_assignment: AssignmentPolicy = AssignmentPolicy.EVEN
    on_hang: OnHang = OnHang.RECOVER
    on_numeric_anomaly: NumericAnomalyPolicy = NumericAnomalyPolicy.REPORT
    on_corruption: CorruptionPolicy = CorruptionPolicy.REPORT
    dp: int = 0
    """Data-parallel size that scripts receive; 0: none."""
    pp: int = 0
    """Pipeline stages, likewise."""
    tp: int = 0
    """Tensor-parallel ranks, likewise; 0: as many as the script says."""
    shard_snapshots: bool = False
    """Each of several data-parallel replicas saves a part of the replicated state."""
    encrypts_snapshots: bool = True
    """On their way between nodes; else they are only authenticated."""
    step_replay_every: int = 0
    """Steps between scheduled replays; 0: none."""
    resume: str | None = None
    """``latest``, ``auto`` (the same, or from the start where there is nothing), or a run; None: from the start."""
    checkpoint_replicas: int = 0
    """Copies in a checkpoint of what data-parallel replicas hold alike; 0: each replica writes its whole state."""
    checkpoint_parity: bool = False
    """Parity rows and copies of a checkpoint go to disk too."""
    checkpoint_encoding: StepEncoding = "full"
    accept_quantized: bool = False
    """``resume`` may restore near values."""
    disk_auto: bool = False
    """Mainstay learns the interval from the cost of a save and the failure rate; ``disk_every`` is the first value."""
    parity_auto: bool = False
    mtbf_hours: float = NODE_MTBF_HOURS
    quorum: int = 1
    """Launchers that must agree to another coordinator."""
    spare_nodes: int = 0
    """Nodes beyond ``nnodes`` that may wait without ranks for those of lost nodes."""
    launcher_endpoint: tuple[str, int] | None = None
    """Where other launchers reach this one; None: at its own address and any port."""
    script: str
    module: bool
    argv: tuple[str, ...]

    @property
    def disk_keep(self) -> int:
        """Files of each rank: more where a faulty device may be noticed late, so that one file is from before."""
        reach = max(
            DIGESTS_APART if self.on_numeric_anomaly is NumericAnomalyPolicy.REPLAY else 0, self.step_replay_every
        )
        older = CORRUPTION_KEEP if self.on_corruption is CorruptionPolicy.ROLLBACK else 0
        needed = 2 + max(older, -(-reach // self.disk_every) if self.disk_every else 0)
        return max(needed, self.checkpoint_keep)

    @property
    def recovers_from_disk(self) -> bool:
        """Steps of the run's own on disk have the bits that a recovery continues from."""
        return self.checkpoint_encoding not in QUANTIZED

    @property
    def world_size(self) -> int:
        return self.nnodes * self.nproc

    @property
    def max_nodes(self) -> int:
        return self.nnodes + self.spare_nodes

    @property
    def control_tls(self) -> JobTls:
        """What this launcher is to others of the job."""
        return job_tls(self.token, self.job, Authority.CONTROL)

    @property
    def snapshot_tls(self) -> JobTls:
        """What this launcher and its ranks are to the job's agents."""
        return job_tls(self.token, self.job, Authority.SNAPSHOTS)


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
        description="Launch a protected training job: a lost rank is restored while the others stay alive.",
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _torchrun_options(parser)
    _job_options(parser)
    _checkpoint_options(parser)
    _recovery_options(parser)
    parser.add_argument("script", help="Run this training script (with -m: this module).")
    parser.add_argument("script_args", nargs=argparse.REMAINDER, help="Pass these arguments to the script.")
    return parser


def _both(name: str) -> tuple[str, str]:
    """Torchrun takes both spellings."""
    return f"--{name}", f"--{name.replace('-', '_')}"


def _torchrun_options(parser: argparse.ArgumentParser) -> None:
    add = add_group(parser, "options of torchrun")
    add("--nnodes", type=parse_nnodes, default="1", metavar="N or MIN:MAX")
    add(*_both("node-rank"), type=int, default=0, help="Set the number of this node; node 0 coordinates.")
    add(*_both("nproc-per-node"), dest="nproc", type=int, default=1, metavar="N")
    add(*_both("rdzv-endpoint"), type=parse_any_endpoint, metavar="HOST:PORT")
    add(*_both("max-restarts"), type=int, default=10, help="Give the job up after this many recoveries.")
    add("-m", "--module", action="store_true", help="Run the script as a module.")
    add("--standalone", action="store_true", help="Use one node; this is also the default.")


def _job_options(parser: argparse.ArgumentParser) -> None:
    add = add_group(parser, "options of the job")
    add("--job-id", help="Name the job; use the same name on all nodes.")
    add("--node-name", dest="node", metavar="NAME", help="Name this node; the default is its host name.")
    add("--preload", action="append", default=[], metavar="MODULE", help="Import a module before any rank; repeatable.")
    add("--dp", type=int, default=0, help=f"Set the data-parallel size {SHAPE}. 0: what the other sizes leave.")
    add("--pp", type=int, default=0, help=f"Set the number of pipeline stages {SHAPE}. 0: one.")
    add("--tp", type=int, default=0, help="Set the number of tensor-parallel ranks. 0: that of mainstay.init(tp=).")
    add("--token-file", type=Path, help=f"Read the job's secret from a file instead of {TOKEN_VARIABLE}.")
    add("--service", type=parse_service, metavar="URL")
    add("--service-token-file", type=Path, help="Read the token for --service from a file.")
    _add_choice(add, "--admission", AdmissionPolicy.ENFORCE)
    _add_choice(add, "--preflight", AdmissionPolicy.OFF)
    add("--state-dir", type=Path, help="Keep events.jsonl, job.json, and spools in this directory.")
    add("--record-events", type=Path, metavar="DIR", help="Record what changes the job, for mainstay replay-job.")
    add("--join-timeout", dest="join_seconds", type=float, default=300.0, metavar="S")
    add("--ready-timeout", dest="ready_seconds", type=float, default=60.0, metavar="S")
    add("--node-timeout", dest="node_seconds", type=float, default=10.0, metavar="S")
    add("--quorum", type=int)
    add("--launcher-endpoint", type=parse_endpoint, metavar="HOST:PORT")


def _checkpoint_options(parser: argparse.ArgumentParser) -> None:
    add = add_group(parser, "options of snapshots and checkpoints")
    add("--parity-interval", dest="parity_every", type=parse_steps, default=10, metavar="N")
    add("--protection", default="xor", metavar="SCHEME")
    add("--group-size", type=int, metavar="N")
    add("--failure-domain", dest="domain", action="append", default=[], metavar="[NODE=]RACK")
    add("--shard-snapshots", action="store_true")
    add("--snapshot-encryption", choices=("on", "off"), default="on")
    add("--checkpoint-interval", dest="disk_every", type=parse_steps, default=0, metavar="N")
    add("--checkpoint-dir", type=Path, metavar="DIR")
    add("--checkpoint-keep", type=int, default=2, metavar="N")
    add("--checkpoint-keep-hours", type=float, default=0.0, metavar="H")
    add("--checkpoint-upload", type=parse_upload, metavar="URL")
    add("--checkpoint-upload-rate", dest="upload_rate", type=float, default=0.0, metavar="B")
    add("--checkpoint-replicas", type=int, default=0, metavar="N")
    add("--checkpoint-parity", action="store_true")
    encodings = get_args(StepEncoding)
    add("--checkpoint-encoding", choices=encodings, default=encodings[0])
    add("--resume", metavar="RUN")
    add("--accept-quantized", action="store_true")
    add("--node-mtbf-hours", dest="mtbf_hours", type=float, default=NODE_MTBF_HOURS, metavar="H")


def _recovery_options(parser: argparse.ArgumentParser) -> None:
    add = add_group(parser, "options of recovery")
    add("--standbys", dest="spares", type=int, default=1, metavar="N")
    _add_choice(add, "--on-loss", LossPolicy.WAIT)
    _add_choice(add, "--on-hang", OnHang.RECOVER)
    _add_choice(add, "--on-numeric-anomaly", NumericAnomalyPolicy.REPORT)
    _add_choice(add, "--on-corruption", CorruptionPolicy.REPORT)
    add("--step-replay-every", type=int, default=0, help="Replay steps every so many steps to find SDC; 0: never.")
    _add_choice(add, "--micro-batch-assignment", AssignmentPolicy.EVEN)


def _add_choice(add: Callable[..., argparse.Action], name: str, default: StrEnum) -> None:
    known = {value.value: value for value in type(default)}
    add(name, type=lambda word: known.get(word, word), choices=[*known], default=default)


def _checked(found: argparse.Namespace) -> RunOptions:
    service_token = read_token(found.service_token_file, "--service-token-file")
    job = found.job_id or f"job-{secrets.token_hex(4)}"
    host, port = require_endpoint(found.rdzv_endpoint, found.nnodes.most)
    same = {name: value for name, value in vars(found).items() if name in {each.name for each in fields(RunOptions)}}
    options = RunOptions(**same | {
        "nnodes": found.nnodes.least,
        "spare_nodes": found.nnodes.most - found.nnodes.least,
        "host": host,
        "port": port,
        "node": found.node or socket.gethostname().split(".")[0] or "localhost",
        "job": job,
        "token": find_job_token(found.token_file, service_token, job, found.nnodes.most),
        "service_token": service_token,
        "preload": tuple(found.preload),
        "parity_every": AUTO_PARITY if found.parity_every == AUTO else found.parity_every,
        "parity_auto": found.parity_every == AUTO,
        "disk_every": AUTO_DISK if found.disk_every == AUTO else found.disk_every,
        "disk_auto": found.disk_every == AUTO,
        "protection": parse_scheme(found.protection, found.group_size),
        "domain": next((text for text in reversed(found.domain) if "=" not in text), ""),
        "domains": parse_domains(found.domain),
        "state_dir": found.state_dir or state_directory(job),
        "quorum": found.nnodes.most // 2 + 1 if found.quorum is None else found.quorum,
        "encrypts_snapshots": found.snapshot_encryption == "on",
        "argv": tuple(found.script_args),
    })  # fmt: skip
    _refuse_nonsense(options, named=found.job_id is not None)
    return options


def _unformed(options: RunOptions) -> bool:
    """Whether the ranks cannot form the shape. The script may give a size that is left out."""
    told = max(1, options.dp) * max(1, options.pp) * max(1, options.tp)
    return told != options.world_size if options.dp and options.tp else options.world_size % told > 0


def _parity_problems(options: RunOptions) -> dict[str, bool]:
    """Of ``--checkpoint-parity``."""
    encoding, scheme = options.checkpoint_encoding, options.protection.kind
    every, parity, auto = options.disk_every, options.parity_every, options.disk_auto or options.parity_auto
    unfit = encoding == "exact" and (scheme is SchemeKind.COPIES or options.checkpoint_upload is not None)
    return {
        "--checkpoint-parity needs --protection, and no --checkpoint-replicas": scheme is SchemeKind.NONE
        or options.checkpoint_replicas > 0,
        "--checkpoint-parity needs a --checkpoint-interval that is a multiple of --parity-interval, neither of them "
        "auto": auto or not 0 < parity <= every or every % parity > 0,
        f"--checkpoint-encoding {encoding} cannot be used with --checkpoint-parity": encoding in QUANTIZED,
        "--checkpoint-encoding exact with --checkpoint-parity needs --protection xor or rs:T, and no "
        "--checkpoint-upload": unfit,
    }


def _refuse_nonsense(options: RunOptions, *, named: bool) -> None:
    problems = {  # one line an option, so that each message stands beside its condition
        "--nproc-per-node must be at least 1": options.nproc < 1,
        f"--node-rank must be from 0 to {options.max_nodes - 1}": not 0 <= options.node_rank < options.max_nodes,
        "--standbys, --parity-interval, --checkpoint-interval and --max-restarts must not be negative": min(
            options.spares, options.parity_every, options.disk_every, options.max_restarts
        )
        < 0,
        "timeouts must be above 0 s": min(options.join_seconds, options.ready_seconds, options.node_seconds) <= 0,
        "--shard-snapshots leaves step replay no replicas to compare: remove it or --on-numeric-anomaly, "
        "--step-replay-every": (
            options.shard_snapshots
            and (options.on_numeric_anomaly is NumericAnomalyPolicy.REPLAY or options.step_replay_every > 0)
        ),
        "--shard-snapshots leaves no complete replica: use it with --on-loss wait": options.shard_snapshots
        and options.on_loss is not LossPolicy.WAIT,
        "--dp, --pp and --tp must not be negative": min(options.dp, options.pp, options.tp) < 0,
        f"the product of --dp, --pp and --tp must {'be' if options.dp and options.tp else 'divide'} the "
        f"{options.world_size} ranks": _unformed(options),
        f"--quorum must be from 1 to {options.max_nodes}": not 1 <= options.quorum <= options.max_nodes,
        "--step-replay-every must not be negative": options.step_replay_every < 0,
        "--checkpoint-interval needs --checkpoint-dir": options.disk_every > 0 and options.checkpoint_dir is None,
        "--on-loss reinstantiate needs --checkpoint-dir": options.on_loss is LossPolicy.REINSTANTIATE
        and options.checkpoint_dir is None,
        "--checkpoint-upload needs --checkpoint-dir": options.checkpoint_upload and options.checkpoint_dir is None,
        "--checkpoint-keep must be at least 1": options.checkpoint_keep < 1,
        "--checkpoint-keep-hours must not be negative": options.checkpoint_keep_hours < 0,
        "--checkpoint-upload-rate must not be negative": options.upload_rate < 0,
        "--checkpoint-replicas must not be negative": options.checkpoint_replicas < 0,
        f"--checkpoint-encoding {options.checkpoint_encoding} needs --checkpoint-replicas 0": (
            options.checkpoint_encoding != "full" and options.checkpoint_replicas > 0
        ),
        **(_parity_problems(options) if options.checkpoint_parity else {}),
        "--accept-quantized needs --resume": options.accept_quantized and options.resume is None,
        "--resume needs --checkpoint-dir": options.resume is not None and options.checkpoint_dir is None,
        "--node-mtbf-hours must be above 0": not options.mtbf_hours > 0.0,
        "--job-id is needed when there are several nodes": options.max_nodes > 1 and not named,
        f"script {options.script} does not exist": not options.module and not Path(options.script).is_file(),
    }
    for problem, holds in problems.items():
        if holds:
            raise OptionsError(problem)
    for value, what in ((options.job, "--job-id"), (options.node, "--node-name")):
        try:
            validate_name(value, what)
        except ValueError as error:
            raise OptionsError(str(error)) from error
