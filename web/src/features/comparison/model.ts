/** What a comparison says, in words and in order. Pure. */
import type { MeasuredCohort, UpdateComparison, UpdateShift, Verdict } from "@/api/types";
import { percent, plural } from "@/lib/format";

const SEPARATOR = "; ";

/** The driver and firmware of a cohort; its hardware stands before them. */
export const softwareOf = (cohort: string): string =>
  cohort.includes(SEPARATOR) ? cohort.slice(cohort.indexOf(SEPARATOR) + SEPARATOR.length) : "any software";

/** Hardware → the software versions that were measured on it, the one that came last first. */
export function byHardware(cohorts: readonly MeasuredCohort[]): Map<string, MeasuredCohort[]> {
  const found = new Map<string, MeasuredCohort[]>();
  for (const one of [...cohorts].sort((a, b) => b.first_at - a.first_at)) {
    const known = found.get(one.hardware);
    if (known) known.push(one);
    else found.set(one.hardware, [one]);
  }
  return found;
}

/** The update that came last: the newest version of some hardware and the one before it. */
export function lastUpdate(cohorts: readonly MeasuredCohort[]): { before: string; after: string } | null {
  for (const versions of byHardware(cohorts).values()) {
    const [after, before] = versions;
    if (after && before) return { before: before.cohort, after: after.cohort };
  }
  return null;
}

/** "5.3 % slower", "1.0 % faster", "unchanged". */
export function changeText(worse: number | null): string {
  if (worse === null) return "not comparable";
  const text = percent(Math.abs(worse));
  if (Number.parseFloat(text) === 0) return "unchanged";
  return `${text} ${worse > 0 ? "slower" : "faster"}`;
}

const signed = (share: number) => `${share < 0 ? "−" : "+"}${percent(Math.abs(share))}`;

/** The interval of the median change; open where devices are too few for one. */
export function intervalText({
  worse_low,
  worse_high,
}: Pick<UpdateShift, "worse_low" | "worse_high">): string {
  if (worse_low === null && worse_high === null) return "no interval: too few devices";
  if (worse_low === null) return `at most ${signed(worse_high as number)}`;
  if (worse_high === null) return `at least ${signed(worse_low)}`;
  return `${signed(worse_low)} to ${signed(worse_high)}`;
}

/** Said before the reason, which itself says where the update is to blame. */
export const blameText = {
  devices: "Blame the devices that stand out",
  both: "Blame the update, and these devices besides",
} as const;

/** The one sentence of a comparison. */
export function headline({ metrics, at }: Pick<UpdateComparison, "metrics" | "at">): string {
  const what = at === null ? "update" : "change";
  const all = metrics.filter((one) => one.blame === "update" || one.blame === "both").length;
  const some = new Set(standouts(metrics).map((one) => `${one.node}/${one.device}`)).size;
  const slow = some > 0 ? `${plural(some, "device")} ${some === 1 ? "stands" : "stand"} out` : "";
  if (all > 0)
    return `The ${what} is to blame: ${all} of ${plural(metrics.length, "metric")} became slower as a whole${slow && `; ${slow} besides`}.`;
  if (slow) return `No ${what} is to blame: ${slow}.`;
  const unknown = metrics.filter((one) => one.verdict === "unknown").length;
  if (unknown > 0)
    return `Unknown for ${unknown} of ${plural(metrics.length, "metric")}: a slowdown of 5 % could hide.`;
  return "Nothing became slower: a slowdown of 5 % is ruled out.";
}

export interface Standout {
  node: string;
  device: string;
  /** What it is slow at, the worst first. */
  of: { benchmark: string; metric: string; worse: number | null }[];
}

/** Devices that are slower by themselves, those slow at most things first. */
export function standouts(metrics: readonly UpdateShift[]): Standout[] {
  const found = new Map<string, Standout>();
  for (const { benchmark, metric, devices } of metrics)
    for (const { node, device, worse, said } of devices) {
      if (said !== "slower") continue;
      const key = `${node}/${device}`;
      const known = found.get(key) ?? { node, device, of: [] };
      known.of.push({ benchmark, metric, worse });
      found.set(key, known);
    }
  for (const one of found.values()) one.of.sort((a, b) => (b.worse ?? 0) - (a.worse ?? 0));
  return [...found.values()].sort((a, b) => b.of.length - a.of.length || a.node.localeCompare(b.node, "en"));
}

/** How many of each verdict. */
export const counted = (items: readonly { verdict: Verdict }[], verdict: Verdict): number =>
  items.filter((one) => one.verdict === verdict).length;

/** What a date field holds, as Unix seconds; undefined where it is empty or no date. */
export function secondsOf(local: string): number | undefined {
  const time = new Date(local).getTime() / 1000;
  return Number.isFinite(time) ? time : undefined;
}

/** Unix seconds as a date field wants them: local, to the minute. */
export function localOf(seconds: number | undefined): string {
  if (seconds === undefined) return "";
  const date = new Date(seconds * 1000);
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}
