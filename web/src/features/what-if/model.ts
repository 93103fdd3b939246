/** A what-if in words and numbers: the form's fields, the question they ask, what the answer says. Pure. */
import type { Job, RecoveryPolicy, Simulation, SimulationQuestion, Steps } from "@/api/types";
import { median } from "@/charts/rank-layout";
import { age, percent } from "@/lib/format";

export type Result = Simulation["policies"][number];
export type Estimate = NonNullable<Result["ettr"]>;
export type Vary = "nothing" | "mtbf_hours" | "spares";

/** What a job is and how its nodes fail, as typed. */
export interface Numbers {
  nodes: string;
  gpus: string;
  dp: string;
  pp: string;
  tp: string;
  microBatches: string;
  iteration: string;
  mtbfHours: string;
  repairHours: string;
  spares: string;
  days: string;
  seeds: string;
}

export interface PolicyFields {
  name: RecoveryPolicy["name"];
  words: string;
  chosen: boolean;
  save: string;
  restart: string;
}

export interface Fields {
  numbers: Numbers;
  policies: PolicyFields[];
  vary: Vary;
}

/** Llama 3's job, as the service's own defaults are; repair, spares and micro-batches are assumptions. */
export const USUAL: Numbers = {
  nodes: "2048",
  gpus: "8",
  dp: "128",
  pp: "16",
  tp: "8",
  microBatches: "16",
  iteration: "4",
  mtbfHours: "6000",
  repairHours: "12",
  spares: "20",
  days: "54",
  seeds: "20",
};

export function fieldsOf(policies: RecoveryPolicy[], numbers: Numbers): Fields {
  return {
    numbers,
    policies: policies.map((policy) => ({
      name: policy.name,
      words: policy.words,
      chosen: policy.name !== "own",
      save: shortNumber(policy.save_s),
      restart: shortNumber(policy.restart_s),
    })),
    vary: "spares",
  };
}

const shortNumber = (value: number) => String(Number(value.toFixed(2)));

/** A job's shape and pace instead of the usual ones; one spare in a hundred nodes, at least one. */
export function numbersOf(job: Job, steps: Steps | undefined): Numbers {
  const { dp, pp, tp, world_size, ranks } = job.topology;
  const nodes = new Set(ranks.map((place) => place.node)).size || 1;
  const whole = world_size % nodes === 0;
  const times = (steps?.step_time_seconds ?? []).flat().filter((time): time is number => time !== null);
  const iteration = median(times);
  return {
    ...USUAL,
    nodes: String(whole ? nodes : world_size),
    gpus: String(whole ? world_size / nodes : 1),
    dp: String(dp),
    pp: String(pp),
    tp: String(tp),
    // Below a millisecond a step was not measured; the service refuses it.
    iteration:
      iteration === null || iteration < 1e-3 ? USUAL.iteration : String(Number(iteration.toPrecision(3))),
    spares: String(Math.max(1, Math.round(nodes / 100))),
  };
}

export function question({ numbers, policies, vary }: Fields): SimulationQuestion {
  return {
    nodes: Number(numbers.nodes),
    gpus_per_node: Number(numbers.gpus),
    dp: Number(numbers.dp),
    pp: Number(numbers.pp),
    tp: Number(numbers.tp),
    micro_batches: Number(numbers.microBatches),
    iteration_s: Number(numbers.iteration),
    mtbf_hours: Number(numbers.mtbfHours),
    repair_hours: Number(numbers.repairHours),
    spares: Number(numbers.spares),
    days: Number(numbers.days),
    seeds: Number(numbers.seeds),
    seed: 0,
    policies: policies
      .filter((policy) => policy.chosen)
      .map(({ name, save, restart }) => ({ name, save_s: Number(save), restart_s: Number(restart) })),
    sweep: vary === "nothing" ? null : { over: vary },
  };
}

/** Whether shape and GPUs fit, in words where they do not: said before anything is asked. */
export function misfit({ nodes, gpus, dp, pp, tp }: Numbers): string | null {
  const ranks = Number(dp) * Number(pp) * Number(tp);
  const there = Number(nodes) * Number(gpus);
  return ranks === there
    ? null
    : `${dp} × ${pp} × ${tp} is ${ranks} ranks, but the nodes have ${there} GPUs.`;
}

/** Those that can be followed, the one that keeps most first. */
export function ranked(policies: Result[]): (Result & { ettr: Estimate })[] {
  return policies
    .filter((one): one is Result & { ettr: Estimate } => one.ettr !== null)
    .sort((a, b) => b.ettr.mean - a.ettr.mean);
}

/** What the answer says, in one sentence; policies whose intervals meet are not told apart. */
export function headline(answer: Simulation): string {
  const [best, ...others] = ranked(answer.policies);
  if (best === undefined) return "None of these policies can be followed in such a job.";
  const kept = `${upper(best.policy.words)} keeps ${percent(best.ettr.mean, 2)} of ${age(answer.days * 86_400)}`;
  const near = others.filter((one) => one.ettr.high >= best.ettr.low);
  if (near.length > 0) {
    return `${kept}; ${near.map((one) => one.policy.words).join(" and ")} cannot be told from it.`;
  }
  const next = others[0];
  return next === undefined
    ? `${kept}.`
    : `${kept}, ahead of ${next.policy.words} with ${percent(next.ettr.mean, 2)}.`;
}

const upper = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);

export function intervalText({ low, high, runs }: Estimate): string {
  return runs > 1 ? `${(low * 100).toFixed(2)} – ${(high * 100).toFixed(2)} %` : "one run";
}

export const CAUSES = [
  { key: "saving", words: "saving" },
  { key: "downtime", words: "restarts and re-joins" },
  { key: "repeated", words: "work done again" },
  { key: "waiting", words: "waiting for a node" },
  { key: "degraded", words: "going on degraded" },
] as const;

export function lostTotal(result: Pick<Result, "lost_gpu_hours">): number {
  const lost = result.lost_gpu_hours;
  return lost === null ? 0 : CAUSES.reduce((sum, { key }) => sum + lost[key], 0);
}

export interface Point {
  x: number;
  mean: number;
  low: number;
  high: number;
}

export interface Series {
  name: string;
  words: string;
  points: Point[];
}

/** A line a policy: over what was varied, else over time. */
export function seriesOf(answer: Simulation): Series[] {
  return answer.policies
    .filter((one) => one.ettr !== null)
    .map((one) => ({
      name: one.policy.name,
      words: one.policy.words,
      points: answer.sweep_over === null ? overTime(answer, one) : overSweep(answer, one),
    }));
}

const overTime = (answer: Simulation, one: Result): Point[] =>
  one.curve.map((mean, i) => ({ x: answer.curve_days[i] ?? 0, mean, low: mean, high: mean }));

function overSweep(answer: Simulation, one: Result): Point[] {
  return answer.sweep.flatMap(({ value, ettr }) => {
    const found = ettr[one.policy.name];
    return found === undefined ? [] : [{ x: value, mean: found.mean, low: found.low, high: found.high }];
  });
}
