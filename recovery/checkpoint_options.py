"""The options of ``mainstay run`` about snapshots and checkpoints."""

from __future__ import annotations

import argparse
import typing
from pathlib import Path
from typing import Final

from mainstay.recovery import option_help
from mainstay.recovery.checkpoint.manifest import StepEncoding
from mainstay.recovery.option_values import parse_upload
from mainstay.recovery.save_intervals import NODE_MTBF_HOURS

AUTO: Final = -(1 << 40)
"""The value of ``auto``: a number that no user types."""


def _steps(text: str) -> int:
    try:
        return AUTO if text == "auto" else int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of steps or auto") from error


def add_checkpoint_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("options of snapshots and checkpoints").add_argument
    add("--parity-interval", dest="parity_every", type=_steps, default=10, metavar="N", help=option_help.PARITY)
    add("--protection", default="xor", metavar="SCHEME", help=option_help.PROTECTION)
    add("--group-size", type=int, help=option_help.GROUP_SIZE)
    add("--failure-domain", dest="domain", action="append", default=[], metavar="[NODE=]RACK", help=option_help.DOMAIN)
    add("--shard-snapshots", action="store_true", help=option_help.SHARD_SNAPSHOTS)
    add("--snapshot-encryption", choices=("on", "off"), default="on", help=option_help.SNAPSHOT_ENCRYPTION)
    add("--checkpoint-interval", dest="disk_every", type=_steps, default=0, metavar="N", help=option_help.INTERVAL)
    add("--checkpoint-dir", type=Path, help=option_help.CHECKPOINTS)
    add("--checkpoint-keep", type=int, default=2, metavar="N", help=option_help.CHECKPOINT_KEEP)
    add("--checkpoint-keep-hours", type=float, default=0.0, metavar="H", help=option_help.CHECKPOINT_KEEP_HOURS)
    add("--checkpoint-upload", type=parse_upload, metavar="URL", help=option_help.CHECKPOINT_UPLOAD)
    rate = option_help.CHECKPOINT_UPLOAD_RATE
    add("--checkpoint-upload-rate", dest="upload_rate", type=float, default=0.0, metavar="B", help=rate)
    add("--checkpoint-replicas", type=int, default=0, help=option_help.CHECKPOINT_REPLICAS)
    add("--checkpoint-parity", action="store_true", help=option_help.CHECKPOINT_PARITY)
    encodings = typing.get_args(StepEncoding)
    add("--checkpoint-encoding", choices=encodings, default=encodings[0], help=option_help.CHECKPOINT_ENCODING)
    add("--resume", metavar="RUN", help=option_help.RESUME)
    add("--accept-quantized", action="store_true", help=option_help.ACCEPT_QUANTIZED)
    add("--node-mtbf-hours", dest="mtbf_hours", type=float, default=NODE_MTBF_HOURS, metavar="H", help=option_help.MTBF)
