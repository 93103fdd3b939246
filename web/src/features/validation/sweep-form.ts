/** Conversion between the form of a sweep and the API. */
import type { components } from "@/api/schema";
import type { HealthState, Sweep } from "@/api/types";

export type SweepBody = components["schemas"]["SweepCreate"];

export interface SweepFields {
  name: string;
  suite: string;
  when: "schedule" | "once" | "request";
  schedule: string;
  timezone: string;
  /** Time of a single run, as a field of the browser in its own time zone. */
  runAt: string;
  nodes: string;
  /** Selected racks, cohorts, states, and benchmarks; empty for all. */
  racks: readonly string[];
  cohorts: readonly string[];
  states: readonly string[];
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
  when: "schedule",
  schedule: "0 3 * * *",
  timezone: "UTC",
  runAt: "",
  nodes: "",
  racks: [],
  cohorts: [],
  states: [],
  benchmarks: [],
  atOnce: "",
  perSwitch: "",
  retries: "0",
  remeasure: "0",
  timeoutMinutes: "",
};

/** The time zone of the browser. */
export const localZone = () => Intl.DateTimeFormat().resolvedOptions().timeZone;

/** Format Unix seconds in a time zone, with the weekday. */
export const inZone = (time: number, timezone: string) =>
  new Intl.DateTimeFormat("en-CA", {
    timeZone: timezone,
    weekday: "short",
    year: "numeric",
    month: "2-digit",
    day: "2-digit",
    hour: "2-digit",
    minute: "2-digit",
    hourCycle: "h23",
  }).format(time * 1000);

/** Split names by spaces, commas, or lines, each once. */
export const names = (text: string): string[] => [...new Set(text.split(/[\s,]+/).filter(Boolean))];

const amount = (text: string): number | null => (text.trim() === "" ? null : Number(text));

export function sweepBody(fields: SweepFields): SweepBody {
  const nodes = names(fields.nodes);
  const minutes = amount(fields.timeoutMinutes);
  return {
    name: fields.name.trim(),
    suite: fields.suite,
    schedule: fields.when === "schedule" ? fields.schedule.trim() : null,
    timezone: fields.timezone.trim(),
    run_at: fields.when === "once" ? new Date(fields.runAt).getTime() / 1000 : null,
    nodes: nodes.length > 0 ? nodes : null,
    racks: [...fields.racks],
    cohorts: [...fields.cohorts],
    states: [...fields.states] as HealthState[],
    enabled: true,
    benchmarks: fields.benchmarks.length > 0 ? [...fields.benchmarks] : null,
    max_concurrent: amount(fields.atOnce),
    max_per_switch: amount(fields.perSwitch),
    retries: amount(fields.retries) ?? 0,
    remeasure: amount(fields.remeasure) ?? 0,
    timeout_seconds: minutes === null ? null : minutes * 60,
  };
}

/** Whether all that the service needs is there. */
export const isComplete = ({ when, schedule, timezone, runAt }: SweepFields) =>
  when === "schedule" ? schedule.trim() !== "" && timezone.trim() !== "" : when === "request" || runAt !== "";

const written = (value: number | null): string => (value === null ? "" : String(value));

/** Unix seconds as the value of a field for a local time. */
function localField(time: number): string {
  const minutes = new Date(time * 1000).getTimezoneOffset();
  return new Date((time - minutes * 60) * 1000).toISOString().slice(0, 16);
}

/** Return the form fields of a sweep. */
export function sweepFields(sweep: Sweep): SweepFields {
  return {
    name: sweep.name,
    suite: sweep.suite,
    when: sweep.run_at !== null ? "once" : sweep.schedule === null ? "request" : "schedule",
    schedule: sweep.schedule ?? "",
    timezone: sweep.timezone,
    runAt: sweep.run_at === null ? "" : localField(sweep.run_at),
    nodes: sweep.nodes?.join(" ") ?? "",
    racks: sweep.racks,
    cohorts: sweep.cohorts,
    states: sweep.states,
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
