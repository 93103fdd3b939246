import type { Sweep, SweepRun, Validation, ValidationResult } from "@/api/types";
import { humanize } from "@/lib/format";

export const stateText: Record<Validation["state"], string> = {
  queued: "Queued",
  taken: "Fetched by the node",
  running: "Running",
  done: "Done",
  expired: "Expired",
};

type ValidationProgress = Pick<Validation, "state" | "held" | "progress" | "cancelled_at">;

export const settled = (validation: Pick<Validation, "state">) =>
  validation.state === "done" || validation.state === "expired";

/** Return the progress of a validation in a few words. A canceled validation that has not ended has its own state. */
export function progressText(validation: ValidationProgress): string {
  if (settled(validation)) return stateText[validation.state];
  if (validation.cancelled_at !== null) return "Canceling";
  if (validation.state === "queued") return validation.held ? "Held" : "Waiting";
  const { progress } = validation;
  if (progress === null) return stateText[validation.state];
  return `${humanize(progress.benchmark)} on ${progress.device}, ${progress.index} of ${progress.total} done`;
}

/** Return the ratio of completed benchmarks; null if unknown. */
export function progressShare({ progress }: Pick<Validation, "progress">): number | null {
  return progress === null || progress.total <= 0 ? null : progress.index / progress.total;
}

/** Return the limits of the sweep that hold a validation. */
export function heldText(sweep: Pick<Sweep, "max_concurrent" | "max_per_switch">): string {
  const limits = [
    sweep.max_concurrent !== null && `${sweep.max_concurrent} concurrent`,
    sweep.max_per_switch !== null && `${sweep.max_per_switch} per switch`,
  ].filter(Boolean);
  return limits.length > 0 ? `at most ${limits.join(", ")}` : "waiting for other nodes of the run";
}

/** Return how often a failed measurement is repeated. */
export const remeasureText = (remeasure: number): string =>
  `failed measurements repeat ${remeasure === 1 ? "once" : `up to ${remeasure} times`}`;

/** The metric name of a whole benchmark without measurements. */
export const WHOLE = "*";

export interface BenchmarkGroup {
  benchmark: string;
  results: ValidationResult[];
}

/** Group results by benchmark, in their order. */
export function byBenchmark(results: readonly ValidationResult[]): BenchmarkGroup[] {
  const groups = new Map<string, ValidationResult[]>();
  for (const result of results) {
    const group = groups.get(result.benchmark);
    if (group) group.push(result);
    else groups.set(result.benchmark, [result]);
  }
  return [...groups].map(([benchmark, list]) => ({ benchmark, results: list }));
}

/** Verdicts from worst to best, as in the service. */
export const worstFirst = ["fail", "unknown", "warn", "pass"] as const;

/** Count the verdicts, worst first, without zeros. */
export function tally(results: readonly ValidationResult[]): [ValidationResult["verdict"], number][] {
  return worstFirst
    .map((v): [ValidationResult["verdict"], number] => [v, results.filter((r) => r.verdict === v).length])
    .filter(([, count]) => count > 0);
}

/** Return the worst verdict; unknown without results. */
export function worst(results: readonly Pick<ValidationResult, "verdict">[]): ValidationResult["verdict"] {
  return worstFirst.find((v) => results.some((r) => r.verdict === v)) ?? "unknown";
}

type Ordered = Pick<Validation, "state" | "held" | "verdict" | "node" | "progress">;

/** Order nodes: outliers, running, waiting, passed. */
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
  counts.pass + counts.warn + counts.fail + counts.unknown + counts.skipped + counts.pending;
