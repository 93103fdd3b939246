"""A rank that saves or loads a sharded state dict with Megatron-core on the CPU."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedTensor

torch.cuda.synchronize = lambda *_: None  # it saves from GPUs alone; there is none here
torch.cuda.current_device = lambda: "cpu"

LAYERS = torch.arange(48.0).reshape(2, 4, 6)
WORDS = torch.arange(12.0).reshape(4, 3)
STEP = 5


def state_of(rank: int, *, filled: bool) -> dict[str, Any]:
    """Layers are cut over ranks as pipeline stages are, the embedding as tensor slices of the vocabulary are."""

    def sharded(key: str, part: torch.Tensor, **options: Any) -> Any:
        local = part.clone() if filled else torch.zeros_like(part)
        return ShardedTensor.from_rank_offsets(key, local, (0, rank, 2), **options)

    mine = slice(2 * rank, 2 * rank + 2)
    embedding = "embedding.word_embeddings.weight"
    return {
        "model": {
            "layers": sharded("decoder.layers.mlp.linear_fc1.weight", LAYERS[rank], prepend_axis_num=1),
            "words": sharded(embedding, WORDS[mine]),
        },
        "optimizer": {
            "moment": sharded(f"optimizer.state.exp_avg.{embedding}", 2 * WORDS[mine]),
            "master": sharded(f"optimizer.state.fp32_param.{embedding}", WORDS[mine].clone()),
            "optimizer": {"param_groups": [{"lr": 0.1, "step": STEP, "params": [0]}]},
        },
        "iteration": STEP,
    }


def main() -> None:
    folder, what = Path(sys.argv[1]), sys.argv[2]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=rank, world_size=world)
    if what == "save":
        (folder / "theirs").mkdir(exist_ok=True)
        dist.barrier()
        dist_checkpointing.save(state_of(rank, filled=True), str(folder / "theirs"))
    else:
        path = folder / "ours" / f"iter_{STEP:07d}"
        loaded = dist_checkpointing.load(state_of(rank, filled=False), str(path))
        wanted = state_of(rank, filled=True)
        for part, name in (("model", "layers"), ("model", "words"), ("optimizer", "moment"), ("optimizer", "master")):
            assert loaded[part][name].flatten().tolist() == wanted[part][name].data.flatten().tolist(), name
        assert loaded["iteration"] == STEP
        assert loaded["optimizer"]["optimizer"] == wanted["optimizer"]["optimizer"]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
