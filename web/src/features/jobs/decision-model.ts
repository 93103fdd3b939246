/** What was weighed at a failure as rows to compare, and how the prediction fared in words. Pure. */
import type { Recovery } from "@/api/types";
import { duration, humanize } from "@/lib/format";

/** In the order in which they are paid. */
const PARTS = ["downtime", "repeated", "degraded", "rejoin", "risk", "standing"];

type Decision = NonNullable<Recovery["decision"]>;
export type WeighedOption = Decision["options"][number];

export interface WeighedRow {
  name: string;
  option: WeighedOption;
  /** Of what the job carries out, what costs least. */
  chosen: boolean;
  /** What was done. */
  done: boolean;
}

export interface WeighedTable {
  possible: WeighedRow[];
  impossible: WeighedRow[];
  phases: string[];
  /** Seconds of a full-width bar. */
  scale: number;
}

export function wayText(ways: readonly string[]): string {
  const [first, ...then] = ways;
  return [humanize(first ?? "nothing"), ...then.map((way) => humanize(way).toLowerCase())].join(", then ");
}

/** The coordinator's sentence, in which ways stand by the names that they have in data. */
export function explanationText(decision: Decision): string {
  const ways = new Set(decision.options.flatMap((option) => option.ways));
  // The longest first: one name may be part of another.
  const sorted = [...ways].sort((a, b) => b.length - a.length);
  const text = sorted.reduce(
    (said, way) => said.replaceAll(way, way.replaceAll("_", " ")),
    decision.explanation,
  );
  return text.charAt(0).toUpperCase() + text.slice(1);
}

export function weighedTable(decision: Decision, way: string | null): WeighedTable {
  const rows = decision.options.map((option): WeighedRow => {
    const chosen = decision.chosen !== null && option.ways.join() === decision.chosen.join();
    const alone = decision.options.some((other) => other.feasible && other.ways.join() === way);
    return {
      name: wayText(option.ways),
      option,
      chosen,
      done: way !== null && (alone ? option.ways.join() === way : option.ways[0] === way),
    };
  });
  const possible = rows.filter((row) => row.option.feasible);
  return {
    possible,
    impossible: rows.filter((row) => !row.option.feasible),
    phases: PARTS.filter((part) => possible.some((row) => part in row.option.parts)),
    scale: Math.max(1e-6, ...possible.map((row) => row.option.expected_s ?? 0)),
  };
}

/** Nothing better was at hand, or so much better. */
export function regretText(recovery: Pick<Recovery, "regret_seconds">): string {
  const regret = recovery.regret_seconds;
  if (regret === null) return "–";
  return regret === 0 ? "none" : duration(regret);
}

/** Both from the failure to the first committed step; null before that, or where nothing was predicted. */
export function promiseText(recovery: Pick<Recovery, "promised_seconds" | "seconds">): string | null {
  const { promised_seconds: promised, seconds } = recovery;
  if (!promised || seconds === null) return null;
  const times = seconds / promised;
  const kept = times <= 1.25 && times >= 0.8;
  return `Training went on after ${duration(seconds)}, predicted were ${duration(promised)}: ${times.toFixed(2)} times as long, ${kept ? "within" : "beyond"} the quarter that is promised.`;
}
