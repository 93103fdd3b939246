import type { Sweep, SweepRun, Validation, ValidationResult } from "@/api/types";
import { humanize } from "@/lib/format";

export const stateText: Record<Validation["state"], string> = {
  queued: "Queued",
  taken: "Taken by the node",
  running: "Running",
  done: "Done",
  expired: "Expired",
};

type Standing = Pick<Validation, "state" | "held" | "progress" | "cancelled_at">;

export const settled = (validation: Pick<Validation, "state">) =>
  validation.state === "done" || validation.state === "expired";

/** Where a validation stands, in few words; what was called off and has not ended yet is its own state. */
export function standingText(validation: Standing): string {
  if (settled(validation)) return stateText[validation.state];
  if (validation.cancelled_at !== null) return "Being called off";
  if (validation.state === "queued") return validation.held ? "Held" : "Waiting";
  const { progress } = validation;
  if (progress === null) return stateText[validation.state];
  return `${humanize(progress.benchmark)} on ${progress.device}, ${progress.index} of ${progress.total} done`;
}

/** Share of the benchmarks that have ended, or null where nobody knows. */
export function progressShare({ progress }: Pick<Validation, "progress">): number | null {
  return progress === null || progress.total <= 0 ? null : progress.index / progress.total;
}

/** Why a validation is held back, by the limits of its sweep. */
export function heldText(sweep: Pick<Sweep, "at_once" | "per_switch">): string {
  const limits = [
    sweep.at_once !== null && `${sweep.at_once} at once`,
    sweep.per_switch !== null && `${sweep.per_switch} under one switch`,
  ].filter(Boolean);
  return limits.length > 0 ? `at most ${limits.join(", ")}` : "waiting for others of its run";
}

/** How often what is too slow is measured again before it fails. */
export const againText = (again: number): string =>
  `too slow is measured ${again === 1 ? "once" : `${again} times`} again`;

/** In place of a metric's name: the benchmark as a whole, which measured nothing. */
export const WHOLE = "*";

export interface BenchmarkGroup {
  benchmark: string;
  results: ValidationResult[];
}

/** Results by benchmark, in the order in which they came. */
export function byBenchmark(results: readonly ValidationResult[]): BenchmarkGroup[] {
  const groups = new Map<string, ValidationResult[]>();
  for (const result of results) {
    const group = groups.get(result.benchmark);
    if (group) group.push(result);
    else groups.set(result.benchmark, [result]);
  }
  return [...groups].map(([benchmark, list]) => ({ benchmark, results: list }));
}

/** As the service judges: a known fault is worse than ignorance, ignorance worse than a known blemish. */
export const worstFirst = ["fail", "unknown", "warn", "pass"] as const;

/** How many of each verdict, worst first; zero counts left out. */
export function tally(results: readonly ValidationResult[]): [ValidationResult["verdict"], number][] {
  return worstFirst
    .map((v): [ValidationResult["verdict"], number] => [v, results.filter((r) => r.verdict === v).length])
    .filter(([, count]) => count > 0);
}

/** The worst of the verdicts; nothing measured is unknown. */
export function worst(results: readonly Pick<ValidationResult, "verdict">[]): ValidationResult["verdict"] {
  return worstFirst.find((v) => results.some((r) => r.verdict === v)) ?? "unknown";
}

type Ordered = Pick<Validation, "state" | "held" | "verdict" | "node" | "progress">;

/** Outliers first, then what runs, what waits, and last what passed. */
export function runOrder(a: Ordered, b: Ordered): number {
  return urgency(a) - urgency(b) || a.node.localeCompare(b.node, "en", { numeric: true });
}

function urgency(v: Ordered): number {
  if (settled(v)) return { fail: 0, unknown: 1, warn: 2, pass: 7 }[v.verdict];
  if (v.state === "running") return 3;
  if (v.state === "taken") return 4;
  return v.held ? 6 : 5;
}

export const runTotal = ({ counts }: Pick<SweepRun, "counts">) =>
  counts.pass + counts.warn + counts.fail + counts.unknown + counts.pending;
