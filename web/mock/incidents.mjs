// Incidents with plan, actions and the history that tells them.
import { exitFinding, hotIncident } from "./findings.mjs";
import { uuid } from "./random.mjs";

const restore = (rank, node, source, from) => ({
  rank,
  node,
  source,
  from_rank: from ?? null,
  from_nodes: from === undefined ? [node] : ["rack01-node2"],
});

function alternatives(job, rank, stepSeconds, small) {
  const k = small ? 1 : 9;
  const parts = (fetch, extra = {}) => ({
    fence: 0.12,
    spawn: small ? 0.34 : 1.4,
    regroup: small ? 0.41 : 3.2,
    fetch,
    load: 0.06 * k,
    ...extra,
  });
  const total = (p) => Object.values(p).reduce((a, b) => a + b, 0);
  const make = (strategy, reason, p, lost, restores) => ({
    strategy,
    feasible: true,
    reason,
    epoch: 18230,
    seconds: total(p),
    steps_lost: lost,
    cost_seconds: total(p) + lost * stepSeconds,
    parts: p,
    restores,
    left_out: 0,
  });
  const node = job.topology.ranks[rank].node;
  return [
    make(
      "local_slot",
      "The agent on this node has the verified slot of the newest step.",
      parts(0.09 * k),
      0,
      [restore(rank, node, "local_slot")],
    ),
    make(
      "peer_copy",
      `Rank ${(rank + job.topology.pp) % job.topology.world_size} holds the same shard; its slot would cross the network once.`,
      parts(0.34 * k),
      0,
      [restore(rank, node, "peer_copy", 1)],
    ),
    make(
      "disk_restart",
      "The last checkpoint is old: every rank would go back to it.",
      parts(1.6 * k, { load: 0.9 * k }),
      small ? 31 : 240,
      [],
    ),
    {
      strategy: "parity_rebuild",
      feasible: false,
      reason:
        "The group's newest parity epoch is older than the live slots, and nothing is lost that needs it.",
      epoch: null,
      seconds: null,
      steps_lost: null,
      cost_seconds: null,
      parts: {},
      restores: [],
      left_out: 0,
    },
  ];
}

function recoveryIncident(job, rank, opened, stage, small) {
  const id = uuid(opened, `inc${opened}`);
  const node = job.topology.ranks[rank].node;
  const at = (seconds) => opened + seconds;
  const list = alternatives(job, rank, small ? 0.21 : 5.6, small);
  const took = list[0].seconds * 1.08;
  const done = stage >= 2;
  const plan = {
    id: uuid(opened, `plan${opened}`),
    job: job.id,
    generation: job.generation + (done ? 0 : 1),
    failed_ranks: [rank],
    alternatives: list,
    chosen: "local_slot",
    explanation:
      "The local slot is the cheapest: nothing crosses the network and no committed step is repeated.",
    created_at: at(0.31),
    incident: id,
    actual_seconds: done ? took : null,
    actual_steps_lost: done ? 0 : null,
    actual_parts: done
      ? {
          detect: 0.18,
          fence: 0.09,
          spawn: list[0].parts.spawn * 1.1,
          regroup: list[0].parts.regroup * 1.02,
          fetch: list[0].parts.fetch,
          load: list[0].parts.load * 1.3,
        }
      : {},
  };
  const story = [
    [
      -0.18,
      "process_exit",
      `Rank ${rank} on ${node}: process 41189 killed by SIGKILL`,
      { pid: 41189, signal: 9, expected: false },
    ],
    [0, "opened", `Incident opened: rank ${rank} was killed without a request.`, {}],
    [
      0.02,
      "finding",
      `Exit detector: rank ${rank} ended by signal 9 with confidence 1.00`,
      { detector: "process_exit", confidence: 1 },
    ],
    [
      0.31,
      "recovery_planned",
      `Plan chosen: local slot, predicted ${list[0].seconds.toFixed(2)} s, no step lost`,
      { plan: plan.id },
    ],
    [0.33, "recovering", "The coordinator executes the plan.", {}],
    [0.35, "action_started", `fence began: generation ${plan.generation - 1}`, { action: "fence" }],
    [
      0.47,
      "action_finished",
      "fence done in 0.09 s: 3 agents acknowledged",
      { action: "fence", ok: true, seconds: 0.09, agents: 3 },
    ],
    [0.5, "action_started", "spawn began: assign a warm standby.", { action: "spawn" }],
    [
      1.9,
      "action_finished",
      "spawn done in 0.370 s: standby 2 became the rank.",
      { action: "spawn", ok: true, seconds: 0.37 },
    ],
    [
      took,
      "recovered",
      `Training resumed: first new step committed after ${took.toFixed(2)} s, 0 steps lost`,
      { steps_lost: 0, epoch: 18230 },
    ],
    [
      took + 12,
      "verified",
      "Verified: 3 steps committed by vote, digests of all ranks agree",
      { steps_committed: 3, digest_match: true },
    ],
    [took + 40, "closed", "Quiet for 60 s: closed.", {}],
  ].slice(0, [2, 9, 10, 11, 12][stage]);
  const time = (kind) => {
    const row = story.find((r) => r[1] === kind);
    return row ? at(row[0]) : null;
  };
  return {
    id,
    title: `Rank ${rank} of ${job.name} was killed`,
    state: ["open", "recovering", "recovered", "verified", "closed"][stage],
    severity: "critical",
    opened_at: opened,
    recovering_at: time("recovering"),
    recovered_at: time("recovered"),
    verified_at: time("verified"),
    closed_at: time("closed"),
    job: job.id,
    node,
    device: null,
    ranks: [rank],
    kinds: ["process_exit"],
    cause: "software",
    needs_operator: false,
    summary: done
      ? `Restored from the local slot in ${took.toFixed(2)} s; no step was lost.`
      : "Its process ended by SIGKILL; a standby takes its place from the local slot.",
    timeline: story.map(([t, kind, text, data]) => ({ time: at(t), kind, text, data })),
    findings_total: 1,
    findings: [{ ...exitFinding(id, job, rank, node, at(0.02)), active: !done }],
    plan,
    actions: [
      {
        id: `${id}-1`,
        name: "fence",
        state: "done",
        started_at: at(0.35),
        finished_at: at(0.47),
        seconds: 0.12,
        detail: "generation revoked on 3 agents",
      },
      {
        id: `${id}-2`,
        name: "spawn",
        state: stage >= 1 ? "done" : "started",
        started_at: at(0.5),
        finished_at: at(1.9),
        seconds: 0.37,
        detail: `standby 2 became rank ${rank}`,
      },
      {
        id: `${id}-3`,
        name: "regroup",
        state: done ? "done" : "started",
        started_at: at(1.9),
        finished_at: done ? at(took - 0.2) : null,
        seconds: done ? 0.42 : null,
        detail: `generation ${plan.generation}`,
      },
    ],
  };
}

export function makeIncidents(scenario, nodes, jobs, now) {
  if (scenario === "empty" || jobs.length === 0) return [];
  if (scenario === "calm") return [recoveryIncident(jobs[0], 3, now - 62, 3, true)];
  const job = jobs[0];
  const past = Array.from({ length: 9 }, (_, i) => {
    const incident = recoveryIncident(
      jobs[i % 5 === 4 ? 2 : 0],
      (i * 3) % (i % 5 === 4 ? 4 : 64),
      now - 3600 * (1.7 + i * 2.9),
      4,
      i % 5 === 4,
    );
    return { ...incident, plan: { ...incident.plan, generation: 7 - (i % 6) } };
  });
  return [
    recoveryIncident(job, 27, now - 3.4, 1, false),
    hotIncident(nodes[11]?.name ?? "n", now - 610, now),
    ...past,
  ].sort((a, b) => b.opened_at - a.opened_at);
}
