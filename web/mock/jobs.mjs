// Jobs with their topology and step times.
import { noise } from "./random.mjs";

function topology(dp, pp, nodes, perNode, lost) {
  const ranks = Array.from({ length: dp * pp }, (_, rank) => {
    const node = nodes[Math.floor(rank / perNode) % nodes.length];
    const gpus = node.devices.filter((d) => d.kind === "gpu").length;
    return {
      rank,
      dp: Math.floor(rank / pp),
      pp: rank % pp,
      tp: 0,
      node: node.name,
      device: gpus ? `gpu${rank % gpus}` : null,
      pid: 41000 + rank * 7,
      state: rank === lost ? "restoring" : "running",
    };
  });
  return { dp, pp, tp: 1, world_size: dp * pp, ranks };
}

export function makeJobs(scenario, nodes, now) {
  if (scenario === "empty") return [];
  const base = { steps_total: 40000, finished_at: null, last_seen_at: now - 0.6 };
  if (scenario === "calm") {
    return [
      {
        ...base,
        id: "demo",
        name: "demo",
        state: "running",
        generation: 2,
        command: "python recovery/examples/train.py --steps 400",
        topology: topology(2, 2, nodes, 2, -1),
        protection: {
          slots: 3,
          parity_every: 4,
          parity_group: 2,
          disk_every: 50,
          state_bytes: [1835008, 1966080, 1835008, 1966080],
        },
        steps_total: 400,
        last_step: 211,
        started_at: now - 96,
        open_incidents: 0,
        recoveries: 1,
        ettr: 0.973,
      },
    ];
  }
  return [
    {
      ...base,
      id: "llama-70b-pretrain",
      name: "llama-70b-pretrain",
      state: "recovering",
      generation: 7,
      command: "python -m pretrain --config configs/llama70b.toml --data /data/fineweb --seed 1234",
      topology: topology(8, 8, nodes.slice(0, 8), 8, 27),
      protection: {
        slots: 3,
        parity_every: 10,
        parity_group: 4,
        disk_every: 500,
        state_bytes: Array.from({ length: 64 }, () => 17_600_000_000),
      },
      last_step: 18240,
      started_at: now - 3600 * 31,
      open_incidents: 1,
      recoveries: 6,
      ettr: 0.9812,
    },
    {
      ...base,
      id: "ablation-17",
      name: "ablation-17",
      state: "running",
      generation: 1,
      command: "python ablate.py --variant 17",
      topology: topology(4, 2, nodes.slice(8, 12), 2, -1),
      protection: {
        slots: 2,
        parity_every: null,
        parity_group: null,
        disk_every: 200,
        state_bytes: Array.from({ length: 8 }, () => 4_100_000_000),
      },
      steps_total: 12000,
      last_step: 10833,
      started_at: now - 3600 * 9,
      open_incidents: 1,
      recoveries: 0,
      ettr: 0.9961,
    },
    {
      ...base,
      id: "sft-eval-3",
      name: "sft-eval-3",
      state: "finished",
      generation: 2,
      command: "python sft.py",
      topology: topology(2, 2, nodes.slice(12, 14), 2, -1),
      protection: {
        slots: 2,
        parity_every: null,
        parity_group: null,
        disk_every: null,
        state_bytes: [1e9, 1e9, 1e9, 1e9],
      },
      steps_total: 3000,
      last_step: 3000,
      started_at: now - 3600 * 20,
      finished_at: now - 3600 * 14,
      last_seen_at: now - 3600 * 14,
      open_incidents: 0,
      recoveries: 1,
      ettr: 0.989,
    },
  ];
}

export function steps(job, query) {
  const last = job.last_step;
  const from = Math.max(0, Number(query.get("from_step") ?? Math.max(0, last - 600)));
  const to = Math.min(last, Number(query.get("to_step") ?? last));
  const stride = Math.max(1, Math.ceil((to - from) / Number(query.get("points") ?? 300)));
  const list = [];
  for (let s = from; s <= to; s += stride) list.push(s);
  const small = job.topology.world_size <= 4;
  const base = small ? 0.21 : 5.6;
  const hiccup = small ? 146 : last - 210;
  const slow = small ? -1 : 19;
  const stage = (rank) => rank.pp / Math.max(1, job.topology.pp - 1);
  const compute = (rank, s) =>
    base *
    (0.62 + 0.06 * stage(rank) + 0.03 * noise("c", rank.rank, s)) *
    (rank.rank === slow && s > last - 160 ? 1.24 : 1);
  const worst = (s) => Math.max(...job.topology.ranks.map((r) => compute(r, s)));
  const near = (s) => Math.abs(s - hiccup) < stride / 2 + 0.5;
  return {
    steps: list,
    ranks: job.topology.ranks.map((r) => r.rank),
    step_time_seconds: job.topology.ranks.map((r) =>
      list.map(
        (s) => (worst(s) * 1.42 + 0.01 * base * noise("w", r.rank, s)) * (near(s) ? (small ? 6.4 : 3.1) : 1),
      ),
    ),
    compute_time_seconds: job.topology.ranks.map((r) =>
      list.map((s) => (r.state === "restoring" && s > last - 1 ? null : compute(r, s))),
    ),
    loss: list.map((s) => 1.9 + 7 * Math.exp(-s / (small ? 80 : 3000)) + 0.05 * noise("loss", s)),
  };
}
