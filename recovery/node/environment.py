"""The environment that a script finds: what torchrun would have set, so that any script runs."""

from __future__ import annotations

import os
from pathlib import Path

from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol.messages import LauncherWelcome, StartRank

_GPUS = Path("/proc/driver/nvidia/gpus")
"""One entry for each GPU of the driver: a question that cannot hang."""


def spare_places(options: RunOptions) -> int:
    """Ranks of other nodes that fit here: no more than GPUs without a rank, as each LOCAL_RANK names one.

    Where no GPU can be seen, or several ranks share one, each standby is a place.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        gpus = len(list(_GPUS.iterdir())) if _GPUS.is_dir() else 0
    else:
        gpus = len([name for name in named.split(",") if name.strip() not in {"", "-1"}])
    return options.spares if gpus < options.nproc else min(options.spares, gpus - options.nproc)


def rank_environment(
    options: RunOptions, welcome: LauncherWelcome, start: StartRank, *, local_rank: int, generation: int
) -> dict[str, str]:
    """Variables of one rank. ``MASTER_ADDR:MASTER_PORT`` is the store that no rank hosts."""
    world_size = start.world_size or welcome.world_size
    values: dict[str, object] = {
        "RANK": start.rank,
        "LOCAL_RANK": local_rank,
        # Numbers of spare nodes lie beyond GROUP_WORLD_SIZE: there, the group is that which the rank began in.
        "GROUP_RANK": start.rank // options.nproc if options.spare_nodes else options.node_rank,
        "ROLE_RANK": start.rank,
        "ROLE_NAME": "default",
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": options.nproc,
        "GROUP_WORLD_SIZE": options.nnodes,
        "ROLE_WORLD_SIZE": world_size,
        "MASTER_ADDR": start.store_host,
        "MASTER_PORT": start.store_port,
        "TORCHELASTIC_RUN_ID": options.job,
        "TORCHELASTIC_RESTART_COUNT": generation - 1,
        "TORCHELASTIC_MAX_RESTARTS": options.max_restarts,
        "TORCHELASTIC_USE_AGENT_STORE": True,
        "MAINSTAY_JOB": options.job,
        "MAINSTAY_NODE": options.node,
        "MAINSTAY_RUN": welcome.run,
    }
    if start.store_host in {"127.0.0.1", "localhost"} and "GLOO_SOCKET_IFNAME" not in os.environ:
        values["GLOO_SOCKET_IFNAME"] = "lo"
    sizes = {"MAINSTAY_DP": start.dp, "MAINSTAY_PP": start.pp, "MAINSTAY_TP": start.tp}
    values |= {name: size for name, size in sizes.items() if size}
    if start.depths:
        values["MAINSTAY_STAGES"] = ",".join(map(str, start.depths))
    return {name: str(value) for name, value in values.items()}
