// A judged run: signals by rank and step, live progress, transfers, detectors' accounts.
import { noise } from "./random.mjs";

export const STRAGGLER = 19;
export const LATE_SENDER = 11;

const slow = (job, rank, step) =>
  job.topology.world_size > 16 && rank === STRAGGLER && step > job.last_step - 160 ? 1.18 : 1;
const base = (job) => (job.topology.world_size <= 4 ? 0.21 : 5.6);

/** One value of one signal; null where it is not measured. */
const makers = {
  compute_time_seconds: (job, r, s) =>
    base(job) *
    (0.62 + 0.06 * (r.pp / job.topology.pp) + 0.012 * noise("c", r.rank, s)) *
    slow(job, r.rank, s),
  forward_seconds: (job, r, s) =>
    base(job) *
    (0.2 + 0.02 * (r.pp / job.topology.pp) + 0.004 * noise("f", r.rank, s)) *
    slow(job, r.rank, s),
  backward_seconds: (job, r, s) => base(job) * (0.4 + 0.008 * noise("b", r.rank, s)) * slow(job, r.rank, s),
  step_time_seconds: (job, r, s) =>
    base(job) *
    (0.98 + 0.01 * noise("w", r.rank, s)) *
    slow(job, STRAGGLER, s) *
    (s === job.last_step - 210 ? 3.1 : 1),
  communication_wait_seconds: (job, r, s) =>
    base(job) *
    (0.1 +
      0.01 * noise("q", r.rank, s) +
      (slow(job, r.rank, s) > 1 ? 0 : (slow(job, STRAGGLER, s) - 1) * 0.6)),
  data_wait_seconds: (_job, r, s) => (noise("dw", r.rank, s) > 0.97 ? 0.3 : 0.004),
  run_delay_seconds: (_job, r, s) => 0.002 + 0.003 * noise("rd", r.rank, s),
  gradient_norm: (job, r, s) =>
    (1.1 + 0.4 * noise("g", s) + 0.1 * noise("g", r.rank, s)) * (s === job.last_step - 90 ? 6.2 : 1),
  loss: (_job, r, s) =>
    r.pp === 7 || r.pp === 1 ? 1.9 + 7 * Math.exp(-s / 3000) + 0.05 * noise("loss", s) : null,
};

export function signals(job, query, problem) {
  const last = job.last_step;
  const from = Number(query.get("start") ?? Math.max(0, last - 399));
  const to = Math.min(last + 1, Number(query.get("stop") ?? last + 1));
  const stride = Math.max(1, Math.ceil((to - from) / Number(query.get("points") ?? 600)));
  const steps = [];
  for (let s = from; s < to; s += stride) steps.push(s);
  const { ranks } = job.topology;
  const found = {};
  for (const name of (query.get("names") ?? "").split(",")) {
    if (!/_seconds$|^gradient_norm$|^loss$|^tokens$|^sequence_squares$/.test(name)) throw problem(name);
    const make = makers[name] ?? (() => null);
    found[name] = ranks.map((r) =>
      steps.map((s) => (r.rank === 40 && s > last - 60 && s < last - 20 ? null : make(job, r, s))),
    );
  }
  return { steps, ranks: ranks.map((r) => r.rank), signals: found };
}

const STATES = { recovering: "hung", running: "moving" };

export function progress(job, now) {
  const state = job.finished_at ? "unknown" : (STATES[job.state] ?? "unknown");
  const hung = state === "hung";
  const count = job.last_step * 40;
  const ranks = job.topology.ranks.map((r) => {
    const culprit = hung && r.rank === 27;
    return {
      rank: r.rank,
      node: r.node,
      step: job.last_step,
      phase: 0,
      in_collective_seconds: culprit ? 0 : hung ? 11.3 - 0.01 * r.rank : 0.04 * noise("in", r.rank),
      age_seconds: culprit ? 7.2 : 0.3 + 0.4 * noise("age", r.rank),
      enqueued: {
        world: job.last_step * 2,
        dp: count + 8,
        pp: culprit ? count * 3 + 4 : count * 3 + 5,
        tp: 0,
      },
      completed: { world: job.last_step * 2, dp: count + 8, pp: count * 3 + 4, tp: 0 },
    };
  });
  return {
    time: now - 0.4,
    state,
    quiet_seconds: state === "unknown" ? null : hung ? 11.4 : 0.4,
    limit_seconds: state === "unknown" ? null : 8.9,
    phase: state === "unknown" ? null : 0,
    kinds: ["world", "dp", "pp", "tp"],
    ranks: state === "unknown" ? [] : ranks,
    omitted: 0,
  };
}

export function pairs(job) {
  const { ranks, pp, dp } = job.topology;
  const at = new Map(ranks.map((r, i) => [`${r.dp}/${r.pp}`, i]));
  const table = () => ranks.map(() => ranks.map(() => null));
  const [seconds, sizes] = [table(), table()];
  const put = (from, to, size, took) => {
    if (from === to || from === undefined || to === undefined) return;
    const late = ranks[from].rank === LATE_SENDER ? 2.1 : 1;
    seconds[from][to] = took * (1 + 0.12 * noise("p", from, to)) * late;
    sizes[from][to] = size;
  };
  ranks.forEach((r, i) => {
    put(i, at.get(`${r.dp}/${r.pp + 1}`), 33_554_432, 0.0042);
    put(i, at.get(`${r.dp}/${r.pp - 1}`), 33_554_432, 0.0042);
    if (dp > 2 || pp === 1) put(i, at.get(`${(r.dp + 1) % dp}/${r.pp}`), 536_870_912, 0.031);
  });
  const none = job.finished_at !== null;
  return {
    first: none ? null : job.last_step - 19,
    last: none ? null : job.last_step,
    ranks: none ? [] : ranks.map((r) => r.rank),
    seconds: none ? [] : seconds,
    bytes: none ? [] : sizes,
  };
}

const status = (name, state, reason = "", numbers = {}) => ({ name, state, reason, numbers });

export function judgement(job) {
  if (job.finished_at) return { detectors: [] };
  const large = job.topology.world_size > 16;
  return {
    detectors: [
      status("hang", "active", "", { period_seconds: 0.74, limit_seconds: 8.9 }),
      status("straggler", "active", "Same role's log ratio; the cross-stage residual is noisier here.", {
        noise_ratio: 0.011,
        detectable_ratio: 0.034,
      }),
      status("data_stall", "active", "", { usual_seconds: 0.004 }),
      status(
        "transfer_delays",
        large ? "active" : "idle",
        large ? "" : "Fewer than 8 pairs exchange anything.",
        large ? { pairs: 176 } : {},
      ),
      status("slowdown", "learning", "It has seen 41 of the 64 steps that it learns from.", { steps: 41 }),
      status("spikes", "active", "", { noise: 0.021 }),
      status(
        "imbalance",
        "abstaining",
        "Sequence lengths differ too much between replicas for either normaliser: noise 9.4 %, of at most 6 %.",
        { noise_ratio: 0.094 },
      ),
      status("digests", "idle", "No digest of the parameters was reported."),
    ],
  };
}
