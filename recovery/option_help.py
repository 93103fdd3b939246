"""What `mainstay run --help` says of the options that need a sentence or two."""

from __future__ import annotations

from typing import Final

SHAPE: Final = "for mainstay.init() where the script names none; mainstay job reshape can change it later"
CHECKPOINT_REPLICAS: Final = (
    "Write this many copies of what data-parallel replicas hold alike, divided among all replicas, to a directory "
    "that all nodes share; 0: each replica writes its whole state."
)
CHECKPOINT_PARITY: Final = "Write parity or copies of checkpoints too: --checkpoint-dir is a disk of each node's own."
CHECKPOINT_ENCODING: Final = (
    "Write each step in full, or exact: after a full step, write what changed, encoded in fewer bytes, which restore "
    "the same bits. With 8bit or 4bit, a restore gives values near those that were saved: see --accept-quantized."
)
CHECKPOINTS: Final = "Write checkpoints to this directory; --resume reads them."
CHECKPOINT_KEEP: Final = "Keep this many of the newest complete steps; more where --on-corruption needs older ones."
CHECKPOINT_KEEP_HOURS: Final = (
    "Keep the first complete step of each H hours too; with --checkpoint-upload, only where steps are uploaded to."
)
CHECKPOINT_UPLOAD: Final = (
    "Upload complete steps to this place, s3://BUCKET/PREFIX?endpoint=URL or a directory; --resume also reads them."
)
CHECKPOINT_UPLOAD_RATE: Final = "Limit the bytes per second that each node uploads; 0: no limit."
GROUP_SIZE: Final = "Limit the nodes of a parity group; the default is 8, or what the scheme needs."
PARITY: Final = "Encode parity across nodes every N steps; 0: never; or auto."
INTERVAL: Final = "Write a checkpoint to --checkpoint-dir every N steps; 0: never; or auto."
MTBF: Final = "Set the mean time between failures of one node in hours, for auto."
STANDBYS: Final = "Keep this many warm standbys; as many ranks of lost nodes fit here."
RESUME: Final = (
    "Continue from the newest complete step of an earlier run: latest, a run ID, or auto (start if there is none)."
)
ACCEPT_QUANTIZED: Final = (
    "Let --resume continue from a quantized step, whose values are near those that were saved, within the error bounds "
    "that mainstay checkpoint ls shows."
)
PROTECTION: Final = (
    "Protect snapshots against node loss: none, xor, rs:T (any T nodes of a group), copies:M (M - 1 nodes of a group)."
)
DOMAIN: Final = "Name the rack or switch that this node (or, on node 0, NODE) shares with others; repeatable."
ON_CORRUPTION: Final = (
    "When a node turns out to have computed wrong results: report the corrupt steps, or roll the job back before them."
)
ON_NUMERIC_ANOMALY: Final = (
    "When values are abnormal: report them, or also replay steps on all ranks and replace the rank that differs."
)
QUORUM: Final = (
    "Require this many launchers to elect a new coordinator; the default is the majority of --nnodes (of MAX). With "
    "two nodes, node 0 continues without node 1, but node 1 does not continue without node 0."
)
LAUNCHER_ENDPOINT: Final = (
    "Announce HOST:PORT to other launchers instead of this launcher's own address; it listens on PORT."
)
ADMISSION: Final = (
    "With --service: place no rank on a node that the service refuses (enforce), only report this (warn), or never ask."
)
PREFLIGHT: Final = (
    "Check devices and transfers of the nodes before ranks start: place no rank on a bad node (enforce), only report "
    "it (warn), or check nothing."
)
ON_HANG: Final = (
    "When ranks hang: report them with their stacks, or also recover (end and replace them) if it is certain which."
)
NPROC: Final = "Set the number of ranks on each node."
RDZV_ENDPOINT: Final = "Set HOST:PORT of the coordinator on node 0; port 0: any (one node only)."
SERVICE: Final = "Send events to this control plane (a URL), not only to the state directory."
READY_TIMEOUT: Final = "Replace a survivor that is silent for this many seconds."
NODE_TIMEOUT: Final = "Declare a node lost after this many seconds of silence."
JOIN_TIMEOUT: Final = (
    "Wait this many seconds for all nodes at the start, and for a node that joins or comes back where ranks have no "
    "place to run."
)
ON_LOSS: Final = (
    "Without warm standbys: wait, drop replicas, reroute work, reinstantiate pipelines, or choose the cheapest (auto)."
)
SHARD_SNAPSHOTS: Final = (
    "Save only a part of the replicated state from each data-parallel replica; set it alike on all nodes."
)
NNODES: Final = (
    "Set the number of nodes. With MIN:MAX, ranks run on MIN nodes. More nodes, up to MAX, may join at any time and "
    "wait as spare nodes, which take the ranks of lost nodes."
)
SNAPSHOT_ENCRYPTION: Final = (
    "Encrypt snapshots on their way between nodes; off: they travel in the clear, and changes on the way are detected. "
    "Messages are always encrypted."
)
