"""Plans for a job that saves in shards: no slot stands alone, and gathering has its price."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mainstay.recovery.option_values import OptionsError
from mainstay.recovery.options import parse
from mainstay.recovery.planner import plan_recovery
from mainstay.recovery.planner_input import HeldParity, HeldSlot, MachineCosts, PlannerInput, RankPlacement
from mainstay.recovery.recovery_plan import RestoreSource, RestoreStrategyName

GB = 10**9


def situation(**changes):
    """Two replicas on two nodes, both at epoch 7; rank 1's process is gone."""
    both = tuple(HeldSlot(node=f"n{rank}", rank=rank, epoch=epoch) for rank in range(2) for epoch in (6, 7))
    made = PlannerInput(
        job="j",
        generation=1,
        step=7,
        step_seconds=1.0,
        ranks=(RankPlacement(rank=0, dp=0, pp=0, node="n0"), RankPlacement(rank=1, dp=1, pp=0, node="n1")),
        state_bytes=(GB, GB),
        failed_ranks=(1,),
        live={0: 7},
        slots=both,
        standbys={"n0": 1, "n1": 1},
        replicated=False,
        sharded=True,
        costs=MachineCosts(net_Bps=1e9, copy_Bps=1e10),
    )
    return replace(made, **changes)


def test_a_survivor_keeps_its_tensors_where_its_part_is_saved_too():
    best = plan_recovery(situation()).alternative()
    assert (best.strategy, best.epoch) == (RestoreStrategyName.LOCAL_SLOT, 7)
    assert [restore.source for restore in best.restores] == [RestoreSource.LIVE, RestoreSource.LOCAL_SLOT]


def test_without_the_survivors_part_all_go_back():
    """It holds epoch 7 in its tensors, but the replacement could not have the part that rank 0 never saved."""
    slots = tuple(hold for hold in situation().slots if (hold.rank, hold.epoch) != (0, 7))
    best = plan_recovery(situation(slots=slots)).alternative()
    assert (best.epoch, best.steps_lost) == (6, 1)
    assert {restore.source for restore in best.restores} == {RestoreSource.LOCAL_SLOT}
    assert plan_recovery(situation(slots=slots, sharded=False)).alternative().epoch == 7


def test_a_replicas_slot_is_no_copy():
    lost = situation(lost_nodes=("n1",), standbys={"n0": 1})
    assert plan_recovery(lost).chosen is None
    rows = (HeldParity(node="n0", epoch=7, ranks=(0, 1)),)
    best = plan_recovery(replace(lost, parity=rows)).alternative()
    assert best.strategy is RestoreStrategyName.PARITY_REBUILD
    assert best.epoch == 7


def test_the_parts_of_others_have_to_come():
    whole, parts = (plan_recovery(situation(sharded=sharded)).alternative().parts for sharded in (False, True))
    assert parts["fetch"] - whole.get("fetch", 0.0) == pytest.approx(1.0), "1 GB from rank 0 at 1 GB/s"
    assert parts["load"] == pytest.approx(2 * whole["load"])


def test_the_option_is_refused_where_replays_need_whole_slots(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text("")
    assert not parse([str(script)]).shard_snapshots
    assert parse(["--shard-snapshots", str(script)]).shard_snapshots
    with pytest.raises(OptionsError, match="--shard-snapshots leaves step replay no replicas"):
        parse(["--shard-snapshots", "--on-numeric-anomaly", "replay", str(script)])
    disk = ["--checkpoint-dir", str(tmp_path), "--checkpoint-interval", "5"]
    assert parse(["--shard-snapshots", *disk, str(script)]).checkpoint_dir == tmp_path
