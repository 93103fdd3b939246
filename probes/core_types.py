"""The shared enums and events of the project, in the lowest layer that needs them. No higher layer redefines them.

Everything here is data: frozen, comparable, cheap to build, and without code that can fail.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Final

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"
"""What a node, device or job id may look like: it appears in URLs, file names and metrics labels."""

_NAME = re.compile(NAME_PATTERN)

HOST_DEVICE = "host"
"""The pseudo-device that carries a node's own signals (CPU, memory, disk, network)."""

NIC_PREFIX = "nic:"
"""How a network port's device id begins: ``nic:mlx5_0:1`` is port 1 of the RDMA device ``mlx5_0``."""


def validate_name(value: str, what: str) -> str:
    """Return ``value`` if it is a legal id.

    Raises:
        ValueError: names ``what`` and the offending value.
    """
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        rule = "1 to 128 letters, digits and . _ : -, the first a letter or digit"
        raise ValueError(f"{what} {value!r} is not a legal id ({rule})")
    return value


class HealthState(StrEnum):
    """The state of a node in its life cycle. Unknown is never healthy."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    DRAINING = "draining"
    QUARANTINED = "quarantined"
    VALIDATING = "validating"


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def level(self) -> int:
        """Place in the order, 0 upwards."""
        return list(Severity).index(self)


class RecommendedAction(StrEnum):
    """The mildest action that is expected to repair the fault. The values are ordered from mildest to strongest."""

    NONE = "none"
    MONITOR = "monitor"  # nothing now; it counts towards a repeat rule or a trend
    RESTART_JOB = "restart_job"  # the job's own fault, or a contained error: the node stays in service
    MIGRATE_RANKS = (
        "migrate_ranks"  # it works, but a job's ranks are safer or faster on another node; the node stays in service
    )
    RESET_GPU = "reset_gpu"
    REBOOT_NODE = "reboot_node"
    INSPECT_NODE = "inspect_node"  # field diagnostics, cables, mechanics: a person has to look
    REPLACE = "replace"  # return to the manufacturer

    @property
    def level(self) -> int:
        """Place in the order, 0 upwards."""
        return list(RecommendedAction).index(self)

    @property
    def evicts(self) -> bool:
        """Whether work has to leave the node first."""
        return self.level >= RecommendedAction.RESET_GPU.level


class StepPhase(IntEnum):
    """What a rank's script is doing. Only ``TRAIN`` is judged for speed; the others may be long and silent."""

    TRAIN = 0
    WARM_UP = 1
    COMPILE = 2
    EVALUATE = 3
    CHECKPOINT = 4


GROUP_KINDS: Final = ("world", "dp", "pp", "cp", "ep", "tp")
"""Kinds of process group, outermost first: blame is looked for from the last to the first."""


class Verdict(StrEnum):
    """The verdict of a validation. It stays until a validation of equal or greater power passes."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


class EventKind(StrEnum):
    """Kinds of events of nodes and jobs. Kinds may be added; their meaning never changes.

    Of a burst a node sends one event each 10 s: ``count`` is how often it happened from ``first`` to ``last``.
    ``before_start``: read from the kernel log after the fact; ``duplicate``: another source reported the same a moment
    before.
    """

    JOB_STARTED = "job_started"
    JOB_FINISHED = "job_finished"
    PROCESS_EXIT = "process_exit"  # data: pid, exit_code | signal, expected: bool
    NODE_LOST = "node_lost"  # a launcher's connection broke and stayed broken
    # data: plan (mainstay.recovery.recovery_plan.RecoveryPlan as JSON); after a strategy choice also: decision
    RECOVERY_PLANNED = "recovery_planned"
    ACTION_STARTED = "action_started"  # data: recovery, action, detail
    ACTION_FINISHED = "action_finished"  # data: recovery, action, ok, seconds, detail
    # data: recovery, seconds (phase -> s), steps_lost, epoch; if any: absent_ranks, absent_replicas, outcome
    RECOVERY_COMPLETED = "recovery_completed"
    RECOVERY_FAILED = "recovery_failed"  # data: recovery, reason
    RECOVERY_VERIFIED = "recovery_verified"  # data: recovery, steps_committed, digest_match
    MIGRATION_STARTED = "migration_started"  # data: migration, subject, reason, moves: [{rank, from, to}]
    MIGRATION_FINISHED = "migration_finished"  # data: the same, ok, detail, phases, seconds (stood still), steps_lost
    SNAPSHOT_CORRUPTED = (
        "snapshot_corrupted"  # found by a scrub or a drill. data: found, flipped, repaired, lost, drills, what
    )
    XID = "xid"  # data: code, source (nvml | kernel), text, pci, uptime; if told: unit, link, gpc, tpc, pid
    SXID = "sxid"  # data: code, fatal, switch, link, pci, text, uptime
    GPU_LOST = "gpu_lost"  # data: reason, source, uptime; cleared: true when it answers again
    GPU_EVENT = "gpu_event"  # an NVML event that is no XID. data: what (ecc_burst, dram_retirement, poison, ...)
    KERNEL_FAULT = "kernel_fault"  # data: fault (oom, panic, soft_lockup, nvme, ...), severity, text, uptime, fields
    LINK_DOWN = "link_down"  # data: link, since_up (s), uptime; if so: flaps, back, down_seconds, gone, state
    LINK_UP = "link_up"  # data: link, since_down (s); steady_seconds: up without a break, of links if no device
    NODE_STOPPING = "node_stopping"  # the daemon ends in order. data: reason (stopped | shutdown)
    NODE_STARTED = "node_started"  # the daemon began. data: uptime (s since boot), boot_id
    # Written by the service, of a report with another boot id. data: boot_id, away (s unheard); if told: booted_at
    NODE_REBOOTED = "node_rebooted"
    HEALTH_REPORT = (
        "health_report"  # another monitor says. data: source, check, fatal, healthy, message, recommended_action, codes
    )
    STACK_DUMP = "stack_dump"  # data: reason, stacks: [{thread, frames: [text, innermost first]}], tool
    # data: reason, summary, kind, certain, culprits: [{rank, group, reason, last_call}], ranks_read, ranks_missing
    FLIGHT_RECORDER = "flight_recorder"
    # data: outcome, sentence, reason, epoch, culprits: [{rank, node, replays, shown, steps}]
    STEP_REPLAY_FINISHED = "step_replay_finished"
    # data: summary, reason, peers: [rank], ranks: [{rank, node, slow, ratios: {kernel: times the peers' seconds}}]
    SPEED_CHECK_FINISHED = "speed_check_finished"
    PROBE_UNRESPONSIVE = (
        "probe_unresponsive"  # data: sampler, channel, reason, seconds, hung; cleared: true when it answers again
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened once, at a time, to an entity. The id is made where it happened: retries are harmless."""

    id: str
    """UUIDv7 text."""
    time: float
    """Unix seconds, UTC."""
    kind: EventKind
    node: str | None = None
    device: str | None = None
    job: str | None = None
    rank: int | None = None
    generation: int | None = None
    data: dict[str, Any] = field(default_factory=dict)
