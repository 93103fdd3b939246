/** A simulation: the fields of its form, the request, and texts of the result. */
import type { Job, RecoveryPolicy, Simulation, SimulationQuestion, Steps } from "@/api/types";
import { median } from "@/charts/rank-layout";
import { age, percent } from "@/lib/format";

export type Result = Simulation["policies"][number];
export type Estimate = NonNullable<Result["ettr"]>;
export type Vary = "nothing" | "mtbf_hours" | "spares";

/** The job and the failures of its nodes, as entered. */
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
  description: string;
  chosen: boolean;
  save: string;
  restart: string;
}

export interface Fields {
  numbers: Numbers;
  policies: PolicyFields[];
  vary: Vary;
}

/** The Llama 3 job, as in the defaults of the service; repair, spares, and micro-batches are assumptions. */
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
      description: policy.description,
      chosen: policy.name !== "own",
      save: shortNumber(policy.save_s),
      restart: shortNumber(policy.restart_s),
    })),
    vary: "spares",
  };
}

const shortNumber = (value: number) => String(Number(value.toFixed(2)));

/** Return fields with the shape and step time of a job, and one spare per 100 nodes, at least one. */
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
    // A step below 1 ms was not measured; the service rejects it.
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

/** Return why shape and GPUs do not fit; null if they fit. */
export function shapeProblem({ nodes, gpus, dp, pp, tp }: Numbers): string | null {
  const ranks = Number(dp) * Number(pp) * Number(tp);
  const there = Number(nodes) * Number(gpus);
  return ranks === there
    ? null
    : `${dp} × ${pp} × ${tp} is ${ranks} ranks, but the nodes have ${there} GPUs.`;
}

/** Return the possible policies, best first. */
export function ranked(policies: Result[]): (Result & { ettr: Estimate })[] {
  return policies
    .filter((one): one is Result & { ettr: Estimate } => one.ettr !== null)
    .sort((a, b) => b.ettr.mean - a.ettr.mean);
}

/** Return the result in one sentence; policies with overlapping intervals are not ranked. */
export function headline(answer: Simulation): string {
  const [best, ...others] = ranked(answer.policies);
  if (best === undefined) return "No selected policy is possible for this job.";
  const kept = `${upper(best.policy.description)} has an ETTR of ${percent(best.ettr.mean, 2)} over ${age(answer.days * 86_400)}`;
  const near = others.filter((one) => one.ettr.high >= best.ettr.low);
  if (near.length > 0) {
    return `${kept}; ${near.map((one) => one.policy.description).join(" and ")} ${near.length === 1 ? "is" : "are"} not clearly different.`;
  }
  const next = others[0];
  return next === undefined
    ? `${kept}.`
    : `${kept}, ahead of ${next.policy.description} with ${percent(next.ettr.mean, 2)}.`;
}

const upper = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);

export function intervalText({ low, high, runs }: Estimate): string {
  return runs > 1 ? `${(low * 100).toFixed(2)}– ${(high * 100).toFixed(2)}%` : "one run";
}

export const CAUSES = [
  { key: "saving", description: "saving" },
  { key: "downtime", description: "restarts and rejoins" },
  { key: "repeated", description: "repeated work" },
  { key: "waiting", description: "waiting for a node" },
  { key: "degraded", description: "degraded operation" },
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
  description: string;
  points: Point[];
}

/** Return one line per policy, over the varied parameter or over time. */
export function seriesOf(answer: Simulation): Series[] {
  return answer.policies
    .filter((one) => one.ettr !== null)
    .map((one) => ({
      name: one.policy.name,
      description: one.policy.description,
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
