/** Conversion between the form of a sweep and the API. */
import type { components } from "@/api/schema";
import type { Sweep } from "@/api/types";

export interface SweepFields {
  name: string;
  suite: string;
  schedule: string;
  nodes: string;
  cohort: string;
  /** Selected benchmarks; empty for the whole suite. */
  benchmarks: readonly string[];
  atOnce: string;
  perSwitch: string;
  retries: string;
  /** Repeats of a failed measurement. */
  remeasure: string;
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
  remeasure: "0",
  timeoutMinutes: "",
};

/** Split names by spaces, commas, or lines, each once. */
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
    max_concurrent: amount(fields.atOnce),
    max_per_switch: amount(fields.perSwitch),
    retries: amount(fields.retries) ?? 0,
    remeasure: amount(fields.remeasure) ?? 0,
    timeout_seconds: minutes === null ? null : minutes * 60,
  };
}

const written = (value: number | null): string => (value === null ? "" : String(value));

/** Return the form fields of a sweep. */
export function sweepFields(sweep: Sweep): SweepFields {
  return {
    name: sweep.name,
    suite: sweep.suite,
    schedule: sweep.schedule ?? "",
    nodes: sweep.nodes?.join(" ") ?? "",
    cohort: sweep.cohort ?? "",
    benchmarks: sweep.benchmarks ?? [],
    atOnce: written(sweep.max_concurrent),
    perSwitch: written(sweep.max_per_switch),
    retries: String(sweep.retries),
    remeasure: String(sweep.remeasure),
    timeoutMinutes: written(sweep.timeout_seconds === null ? null : sweep.timeout_seconds / 60),
  };
}

/** Return only changed fields, so that an unchanged schedule keeps its next run. */
export function sweepChange(sweep: Sweep, fields: SweepFields): components["schemas"]["SweepChange"] {
  const before: Record<string, unknown> = sweepBody(sweepFields(sweep));
  const { enabled: _, ...after } = sweepBody(fields);
  const reported = Object.entries(after).filter(
    ([name, value]) => JSON.stringify(value) !== JSON.stringify(before[name]),
  );
  return { version: sweep.version, ...Object.fromEntries(reported) };
}
