/** The result of a comparison, as text and in order. */
import type { MeasuredCohort, UpdateComparison, UpdateShift, Verdict } from "@/api/types";
import { percent, plural } from "@/lib/format";

const SEPARATOR = "; ";

/** Return the driver and firmware of a cohort, which follow its hardware. */
export const softwareOf = (cohort: string): string =>
  cohort.includes(SEPARATOR) ? cohort.slice(cohort.indexOf(SEPARATOR) + SEPARATOR.length) : "any software";

/** Map hardware to its measured software versions, newest first. */
export function byHardware(cohorts: readonly MeasuredCohort[]): Map<string, MeasuredCohort[]> {
  const found = new Map<string, MeasuredCohort[]>();
  for (const one of [...cohorts].sort((a, b) => b.first_at - a.first_at)) {
    const known = found.get(one.hardware);
    if (known) known.push(one);
    else found.set(one.hardware, [one]);
  }
  return found;
}

/** Return the newest update: the newest version of a hardware and the previous one. */
export function lastUpdate(cohorts: readonly MeasuredCohort[]): { before: string; after: string } | null {
  for (const versions of byHardware(cohorts).values()) {
    const [after, before] = versions;
    if (after && before) return { before: before.cohort, after: after.cohort };
  }
  return null;
}

/** "5.3% slower", "1.0% faster", "unchanged". */
export function changeText(worse: number | null): string {
  if (worse === null) return "not comparable";
  const text = percent(Math.abs(worse));
  if (Number.parseFloat(text) === 0) return "unchanged";
  return `${text} ${worse > 0 ? "slower" : "faster"}`;
}

const signed = (share: number) => `${share < 0 ? "−" : "+"}${percent(Math.abs(share))}`;

/** Return the interval of the median change; open if there are too few devices. */
export function intervalText({
  worse_low,
  worse_high,
}: Pick<UpdateShift, "worse_low" | "worse_high">): string {
  if (worse_low === null && worse_high === null) return "no interval: too few devices";
  if (worse_low === null) return `at most ${signed(worse_high as number)}`;
  if (worse_high === null) return `at least ${signed(worse_low)}`;
  return `${signed(worse_low)} to ${signed(worse_high)}`;
}

/** A text before the reason. */
export const blameText = {
  devices: "Caused by the devices that stand out",
  both: "Caused by the update and by these devices",
} as const;

/** Return the result of a comparison in one sentence. */
export function headline({ metrics, at }: Pick<UpdateComparison, "metrics" | "at">): string {
  const what = at === null ? "update" : "change";
  const all = metrics.filter((one) => one.blame === "update" || one.blame === "both").length;
  const some = new Set(standouts(metrics).map((one) => `${one.node}/${one.device}`)).size;
  const slow = some > 0 ? `${plural(some, "device")} ${some === 1 ? "stands" : "stand"} out` : "";
  if (all > 0)
    return `The ${what} caused a slowdown: ${all} of ${plural(metrics.length, "metric")} became slower on all devices${slow && `; ${slow} in addition`}.`;
  if (slow) return `The ${what} caused no slowdown: ${slow}.`;
  const unknown = metrics.filter((one) => one.verdict === "unknown").length;
  if (unknown > 0)
    return `Unknown for ${unknown} of ${plural(metrics.length, "metric")}: a slowdown of 5% is possible.`;
  return "No metric became slower. A slowdown of 5% is ruled out.";
}

export interface Standout {
  node: string;
  device: string;
  /** The slow metrics of the device, worst first. */
  of: { benchmark: string; metric: string; worse: number | null }[];
}

/** Return devices that are slower than their peers, those with most slow metrics first. */
export function standouts(metrics: readonly UpdateShift[]): Standout[] {
  const found = new Map<string, Standout>();
  for (const { benchmark, metric, devices } of metrics)
    for (const { node, device, worse, assessment } of devices) {
      if (assessment !== "slower") continue;
      const key = `${node}/${device}`;
      const known = found.get(key) ?? { node, device, of: [] };
      known.of.push({ benchmark, metric, worse });
      found.set(key, known);
    }
  for (const one of found.values()) one.of.sort((a, b) => (b.worse ?? 0) - (a.worse ?? 0));
  return [...found.values()].sort((a, b) => b.of.length - a.of.length || a.node.localeCompare(b.node, "en"));
}

/** Count the verdicts. */
export const counted = (items: readonly { verdict: Verdict }[], verdict: Verdict): number =>
  items.filter((one) => one.verdict === verdict).length;

/** Return the value of a date field in Unix seconds; undefined if it is empty or invalid. */
export function secondsOf(local: string): number | undefined {
  const time = new Date(local).getTime() / 1000;
  return Number.isFinite(time) ? time : undefined;
}

/** Format Unix seconds for a date field: local time, to the minute. */
export function localOf(seconds: number | undefined): string {
  if (seconds === undefined) return "";
  const date = new Date(seconds * 1000);
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}
