import type { Validation, ValidationResult } from "@/api/types";

export const stateText: Record<Validation["state"], string> = {
  queued: "Queued",
  taken: "Taken by the node",
  running: "Running",
  done: "Done",
  expired: "Expired",
};

export const settled = (validation: Validation) =>
  validation.state === "done" || validation.state === "expired";

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

/** How many of each verdict, worst first; zero counts left out. */
export function tally(results: readonly ValidationResult[]): [ValidationResult["verdict"], number][] {
  const order = ["fail", "warn", "unknown", "pass"] as const;
  return order
    .map((v): [ValidationResult["verdict"], number] => [v, results.filter((r) => r.verdict === v).length])
    .filter(([, count]) => count > 0);
}
