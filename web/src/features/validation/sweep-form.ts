/** What a person wrote into the form of a new sweep, as the service wants it. Pure. */
import type { components } from "@/api/schema";

export interface SweepFields {
  name: string;
  suite: string;
  schedule: string;
  nodes: string;
  cohort: string;
  /** Chosen benchmarks; empty: the whole suite. */
  benchmarks: readonly string[];
  atOnce: string;
  perSwitch: string;
  retries: string;
  timeoutMinutes: string;
}

export const emptySweep: SweepFields = {
  name: "nightly",
  suite: "",
  schedule: "0 3 * * *",
  nodes: "",
  cohort: "",
  benchmarks: [],
  atOnce: "",
  perSwitch: "",
  retries: "0",
  timeoutMinutes: "",
};

/** Names separated by spaces, commas or lines, each once. */
export const names = (text: string): string[] => [...new Set(text.split(/[\s,]+/).filter(Boolean))];

const amount = (text: string): number | null => (text.trim() === "" ? null : Number(text));

export function sweepBody(fields: SweepFields): components["schemas"]["SweepCreate"] {
  const nodes = names(fields.nodes);
  const minutes = amount(fields.timeoutMinutes);
  return {
    name: fields.name.trim(),
    suite: fields.suite,
    schedule: fields.schedule.trim() || null,
    nodes: nodes.length > 0 ? nodes : null,
    enabled: true,
    cohort: fields.cohort.trim() || null,
    benchmarks: fields.benchmarks.length > 0 ? [...fields.benchmarks] : null,
    at_once: amount(fields.atOnce),
    per_switch: amount(fields.perSwitch),
    retries: amount(fields.retries) ?? 0,
    timeout_seconds: minutes === null ? null : minutes * 60,
  };
}
