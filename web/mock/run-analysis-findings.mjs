// What was found in a judged run, and the stacks of those who are suspected.

import { uuid } from "./random.mjs";
import { LATE_SENDER, STRAGGLER } from "./run-analysis.mjs";

const finding = (job, now, name, kind, summary, numbers, change = {}) => ({
  id: uuid(now, name),
  kind,
  entity: { node: null, device: null, job: job.id, rank: null, peer: null },
  time: now,
  severity: "info",
  detector: name,
  confidence: 0.97,
  evidence: { summary, numbers, series: [] },
  active: true,
  recommended_action: "none",
  cause: "workload",
  event: null,
  incident: null,
  cleared_at: null,
  ...change,
});

export function jobFindings(job, now) {
  if (job.finished_at || job.topology.world_size <= 16) return [];
  const about = (rank, peer = null) => ({ node: null, device: null, job: job.id, rank, peer });
  return [
    finding(
      job,
      now - 1900,
      "imbalance",
      "stage_imbalance",
      "The last pipeline stage computes 9 % longer than the median stage: moving one layer to stage 3 would save about 0.3 s a step.",
      {
        stage: 7,
        excess_ratio: 0.09,
        saved_seconds: 0.31,
      },
    ),
    finding(
      job,
      now - 700,
      "gc",
      "gc_jitter",
      "Python collects garbage at different steps on different ranks, and all ranks wait for each: collect at the same step on all ranks.",
      {
        cost_seconds: 0.12,
        share_ratio: 0.021,
      },
    ),
    finding(
      job,
      now - 480,
      "straggler",
      "straggler",
      "Rank 19 computes 1.18 × as long as its role's other ranks.",
      { step: job.last_step - 152, ratio: 1.18 },
      {
        severity: "warning",
        entity: about(STRAGGLER),
        cause: "faulty_gpu",
      },
    ),
    finding(
      job,
      now - 300,
      "spikes",
      "loss_spike",
      "The gradient norm is 6.2 × its usual size.",
      { step: job.last_step - 90, ratio: 6.2 },
      {
        severity: "warning",
        active: false,
        cleared_at: now - 290,
        cause: null,
      },
    ),
    finding(
      job,
      now - 60,
      "transfer_delays",
      "congestion",
      "All that rank 11 sends takes 2.1 × as long as transfers of its size.",
      { step: job.last_step - 12, ratio: 2.1 },
      {
        severity: "warning",
        entity: about(LATE_SENDER, 12),
        cause: "nic",
      },
    ),
  ];
}

export function stackDumps(job, now) {
  if (job.state !== "recovering") return [];
  const main = [
    "wait (torch/distributed/distributed_c10d.py:2421)",
    "irecv_and_wait (recovery/examples/pipeline.py:118)",
    "forward_backward (recovery/examples/pipeline.py:164)",
    "step (pretrain/loop.py:87)",
    "main (pretrain/__main__.py:41)",
    "<module> (pretrain/__main__.py:63)",
  ];
  const stuck = [
    "read (torch/utils/data/_utils/worker.py:0)",
    "__next__ (torch/utils/data/dataloader.py:732)",
    ...main.slice(2),
  ];
  const event = (rank, suspect, frames) => ({
    id: uuid(now, `stack${rank}`),
    time: now - 2.1,
    kind: "stack_dump",
    node: job.topology.ranks[rank].node,
    device: null,
    job: job.id,
    rank,
    generation: job.generation,
    data: {
      reason: suspect ? "behind its pipeline group" : "for comparison",
      suspect,
      tool: "py-spy",
      process: "sleeping",
      pid: 41000 + rank * 7,
      stacks: [
        { thread: "MainThread (idle)", frames },
        { thread: "mainstay-progress", frames: ["wait (threading.py:359)", "run (recovery/sdk/beat.py:52)"] },
      ],
    },
    received_at: now - 2,
  });
  return [event(27, true, stuck), event(26, false, main)];
}
