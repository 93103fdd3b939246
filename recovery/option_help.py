"""What ``mainstay run --help`` says of the options that need a sentence or two."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

SHAPE: Final = "where mainstay.init() in the script gives none; mainstay job reshape can change it later"
HELP: Final = {
    "--nnodes": "Set the number of nodes. With MIN:MAX, ranks run on MIN nodes. More nodes, up to MAX, may join at "
    "any time and wait as spare nodes, which take the ranks of lost nodes.",
    "--nproc-per-node": "Set the number of ranks on each node.",
    "--rdzv-endpoint": "Set HOST:PORT of the coordinator on node 0; port 0: any (one node only).",
    "--service": "Send events to this control plane (a URL), not only to the state directory.",
    "--admission": "With --service: place no rank on a node that the service refuses (enforce), only report this "
    "(warn), or never ask.",
    "--preflight": "Check devices and transfers of the nodes before ranks start: place no rank on a bad node "
    "(enforce), only report it (warn), or check nothing.",
    "--join-timeout": "Wait this many seconds for all nodes at the start, and for a node that joins or comes back "
    "where ranks have no place to run.",
    "--ready-timeout": "Replace a survivor that is silent for this many seconds.",
    "--node-timeout": "Declare a node lost after this many seconds of silence.",
    "--quorum": "Require this many launchers to elect a new coordinator; the default is the majority of --nnodes (of "
    "MAX). With two nodes, node 0 continues without node 1, but node 1 does not continue without node 0.",
    "--launcher-endpoint": "Announce HOST:PORT to other launchers instead of this launcher's own address; it listens "
    "on PORT.",
    "--standbys": "Keep this many warm standbys; as many ranks of lost nodes fit here.",
    "--on-loss": "Without warm standbys: wait, drop replicas, reroute work, reinstantiate pipelines, or choose the "
    "cheapest (auto).",
    "--on-hang": "When ranks hang: report them with their stacks, or also recover (end and replace them) if it is "
    "certain which.",
    "--on-numeric-anomaly": "When values are abnormal: report them, or also replay steps on all ranks and replace the "
    "rank that differs.",
    "--on-corruption": "When a node turns out to have computed wrong results: report the corrupt steps, or roll the "
    "job back before them.",
    "--micro-batch-assignment": "Assign micro-batches to replicas evenly, or in proportion to their speed.",
    "--parity-interval": "Encode parity across nodes every N steps; 0: never; auto: as measured costs suggest.",
    "--protection": "Protect snapshots against node loss: none, xor, rs:T (any T nodes of a group), copies:M (M - 1 "
    "nodes of a group).",
    "--group-size": "Limit the nodes of a parity group; the default is 8, or what the scheme needs.",
    "--failure-domain": "Name the rack or switch that this node (or, on node 0, NODE) shares with others; repeatable.",
    "--shard-snapshots": "Save only a part of the replicated state from each data-parallel replica; set it alike on "
    "all nodes.",
    "--snapshot-encryption": "Encrypt snapshots on their way between nodes; off: they travel in the clear, and "
    "changes on the way are detected. Messages are always encrypted.",
    "--checkpoint-interval": "Write a checkpoint to --checkpoint-dir every N steps; 0: only when the job ends; auto: "
    "as measured costs and failures suggest.",
    "--checkpoint-dir": "Write checkpoints to this directory; --resume reads them.",
    "--checkpoint-keep": "Keep the newest N complete steps; more where --on-corruption needs older ones.",
    "--checkpoint-keep-hours": "Keep also the first complete step of each period of H hours, with --checkpoint-upload "
    "only at the upload level; 0: none.",
    "--checkpoint-upload": "Upload complete steps to this place, s3://BUCKET/PREFIX?endpoint=URL or a directory; "
    "--resume also reads them.",
    "--checkpoint-upload-rate": "Limit the bytes per second that each node uploads; 0: no limit.",
    "--checkpoint-replicas": "Write this many copies of what data-parallel replicas hold alike, divided among all "
    "replicas, to a directory that all nodes share; 0: each replica writes its whole state.",
    "--checkpoint-parity": "Write parity or copies of checkpoints too: --checkpoint-dir is a disk of each node's own.",
    "--checkpoint-encoding": "Write each step in full, or exact: after a full step, write what changed, encoded in "
    "fewer bytes, which restore the same bits. With 8bit or 4bit, a restore gives values near those that were saved: "
    "see --accept-quantized.",
    "--resume": "Continue from the newest complete step of an earlier run: latest, a run ID, or auto (start if there "
    "is none).",
    "--accept-quantized": "Let --resume continue from a quantized step, whose values are near those that were saved, "
    "within the error bounds that mainstay checkpoint ls shows.",
    "--node-mtbf-hours": "Set the mean time between failures of one node in hours, from which auto intervals start.",
}


def add_group(parser: argparse.ArgumentParser, title: str) -> Callable[..., argparse.Action]:
    """Begin a group of options: ``add_argument`` of it, with the help that stands here unless a call has its own."""
    group = parser.add_argument_group(title)

    def add_option(*names: str, **settings: Any) -> argparse.Action:
        return group.add_argument(*names, **(settings if "help" in settings else settings | {"help": HELP[names[0]]}))

    return add_option
