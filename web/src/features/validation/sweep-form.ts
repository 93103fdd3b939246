/** What a person wrote into the form of a sweep, as the service wants it, and back. Pure. */
import type { components } from "@/api/schema";
import type { Sweep } from "@/api/types";

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
  /** How often what is too slow is measured again. */
  again: string;
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
  again: "0",
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
    again: amount(fields.again) ?? 0,
    timeout_seconds: minutes === null ? null : minutes * 60,
  };
}

const written = (value: number | null): string => (value === null ? "" : String(value));

/** A sweep as the form shows it. */
export function sweepFields(sweep: Sweep): SweepFields {
  return {
    name: sweep.name,
    suite: sweep.suite,
    schedule: sweep.schedule ?? "",
    nodes: sweep.nodes?.join(" ") ?? "",
    cohort: sweep.cohort ?? "",
    benchmarks: sweep.benchmarks ?? [],
    atOnce: written(sweep.at_once),
    perSwitch: written(sweep.per_switch),
    retries: String(sweep.retries),
    again: String(sweep.again),
    timeoutMinutes: written(sweep.timeout_seconds === null ? null : sweep.timeout_seconds / 60),
  };
}

/** Only what the person changed, so that an untouched schedule keeps its next run. */
export function sweepChange(sweep: Sweep, fields: SweepFields): components["schemas"]["SweepChange"] {
  const before: Record<string, unknown> = sweepBody(sweepFields(sweep));
  const { enabled: _, ...after } = sweepBody(fields);
  const told = Object.entries(after).filter(
    ([name, value]) => JSON.stringify(value) !== JSON.stringify(before[name]),
  );
  return { version: sweep.version, ...Object.fromEntries(told) };
}
