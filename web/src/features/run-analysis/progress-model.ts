/** The progress of every rank, and which ranks lag. */
import type { Job, TopologyRank } from "@/api/types";
import { age, duration, integer } from "@/lib/format";
import type { StatusStyle } from "@/lib/status-styles";
import type { JobProgress, ProgressState, RankProgress } from "./types";

export const progressLooks: Record<ProgressState, StatusStyle> = {
  moving: { label: "Moving", tone: "healthy", glyph: "dot", about: "Collectives complete" },
  waiting: {
    label: "Waiting",
    tone: "suspect",
    glyph: "half",
    about: "No collective has completed for longer than usual, but not for the hang timeout",
  },
  masked: {
    label: "Masked",
    tone: "validating",
    glyph: "ring",
    about: "In a phase without collectives: hang detection is paused",
  },
  hung: { label: "Hung", tone: "quarantined", glyph: "cross", about: "No collective completes" },
  unknown: {
    label: "Unknown",
    tone: "unknown",
    glyph: "question",
    about: "No rank reports its progress",
  },
};

const GROUP_NAMES: Record<string, string> = {
  world: "all ranks",
  dp: "data parallel",
  pp: "pipeline",
  cp: "context parallel",
  ep: "expert parallel",
  tp: "tensor parallel",
};
export const groupName = (kind: string) => GROUP_NAMES[kind] ?? kind;

/** How many collectives a rank is behind the first rank of its group, by kind; null if unknown. */
export interface RankRow extends RankProgress {
  behind: Record<string, number | null>;
  /** Whether other ranks wait for this one: it is behind in the innermost group with a lag, and the job has stopped. */
  lags: boolean;
}

/** Return the group of a kind of a rank; null if the topology does not define it. */
function groupKey(kind: string, place: TopologyRank | undefined): string | null {
  if (kind === "world") return "";
  if (!place) return null;
  if (kind === "dp") return `${place.pp}/${place.tp}`;
  if (kind === "pp") return `${place.dp}/${place.tp}`;
  if (kind === "tp") return `${place.dp}/${place.pp}`;
  return null;
}

/** Return the kinds of groups with any collective. */
export function kindsInUse(progress: JobProgress): string[] {
  return progress.kinds.filter((kind) =>
    progress.ranks.some((rank) => (rank.enqueued[kind] ?? 0) > 0 || (rank.completed[kind] ?? 0) > 0),
  );
}

/**
 * Return rows with their lag, lagging ranks first, then by rank. While the job progresses, reports arrive at different
 * times and differ by some collectives, so no rank is marked. Otherwise the ranks behind in the innermost group are.
 */
export function rankRows(progress: JobProgress, topology: Job["topology"]): RankRow[] {
  const kinds = kindsInUse(progress);
  const places = new Map(topology.ranks.map((place) => [place.rank, place]));
  const foremost = new Map<string, number>();
  const keyOf = (kind: string, rank: RankProgress) => {
    const group = groupKey(kind, places.get(rank.rank));
    return group === null ? null : `${kind}:${group}`;
  };
  for (const kind of kinds) {
    for (const rank of progress.ranks) {
      const key = keyOf(kind, rank);
      const begun = rank.enqueued[kind];
      if (key !== null && begun !== undefined) foremost.set(key, Math.max(foremost.get(key) ?? 0, begun));
    }
  }
  const stands = progress.state === "waiting" || progress.state === "hung";
  const rows = progress.ranks.map((rank): RankRow => {
    const behind: Record<string, number | null> = {};
    for (const kind of kinds) {
      const key = keyOf(kind, rank);
      const begun = rank.enqueued[kind];
      behind[kind] = key === null || begun === undefined ? null : (foremost.get(key) ?? begun) - begun;
    }
    return { ...rank, behind, lags: false };
  });
  const inner = stands ? innermost(rows, kinds) : null;
  if (inner !== null) for (const row of rows) row.lags = (row.behind[inner] ?? 0) > 0;
  return rows.sort((a, b) => Number(b.lags) - Number(a.lags) || a.rank - b.rank);
}

/**
 * Return the innermost kind of group (the last of the kinds) in which a rank is behind. A rank that is behind in an
 * outer group may itself wait for a rank of an inner group.
 */
export const innermost = (rows: readonly RankRow[], kinds: readonly string[]): string | null =>
  [...kinds].reverse().find((kind) => rows.some((row) => (row.behind[kind] ?? 0) > 0)) ?? null;

/** Return the state as one sentence with its two numbers. */
export function stateSentence(progress: JobProgress): string {
  const { quiet_seconds: quiet, limit_seconds: limit, phase } = progress;
  const limitText = limit === null ? "no timeout is learned yet" : `the hang timeout is ${duration(limit)}`;
  switch (progress.state) {
    case "moving":
    case "waiting":
      return quiet === null
        ? `${limitText}.`
        : `${duration(quiet)} without a completed collective; ${limitText}.`;
    case "hung":
      return quiet === null
        ? "The job hangs."
        : `No collective has completed for ${duration(quiet)}${limit === null ? "" : `; the hang timeout is ${duration(limit)}`}.`;
    case "masked":
      if (quiet === null) return "In a phase without collectives. Hang detection is paused.";
      return `${phase === null ? "In a phase without collectives" : `In ${phaseText(phase)}`}: ${duration(quiet)} without a completed collective. Hang detection is paused.`;
    default: {
      const newest = lastHeard(progress);
      return newest === null
        ? "No rank reports its progress. It is unknown whether the job progresses."
        : `No rank has reported for ${age(newest)}. It is unknown whether the job progresses.`;
    }
  }
}

/** Return the seconds since the last report of any rank; null without reports. */
export function lastHeard(progress: Pick<JobProgress, "ranks">): number | null {
  const ages = progress.ranks.map((rank) => rank.age_seconds).filter((a): a is number => a !== null);
  return ages.length === 0 ? null : ages.reduce((a, b) => Math.min(a, b));
}

/** Return which ranks the others wait for, as text; empty if no rank is behind. */
export function laggardText(rows: readonly RankRow[], kinds: readonly string[]): string {
  const culprits = rows.filter((row) => row.lags);
  if (culprits.length === 0) return "";
  const kind = innermost(culprits, kinds) ?? "world";
  const names = culprits.slice(0, 4).map((row) => row.rank);
  const who =
    culprits.length === 1
      ? `Rank ${names[0]} is`
      : `Ranks ${names.join(", ")}${culprits.length > 4 ? ` and ${integer(culprits.length - 4)} more are` : " are"}`;
  return `${who} behind the others in ${culprits.length === 1 ? "its" : "their"} ${groupName(kind)} group: the other ranks wait for a collective that ${culprits.length === 1 ? "it has" : "they have"} not started.`;
}

/** `StepPhase` of the training SDK, by its number. */
const PHASES = ["train", "warm-up", "compile", "evaluate", "checkpoint"];
export const phaseText = (phase: number) => PHASES[phase] ?? `phase ${phase}`;

/** Return the elapsed ratio of the hang timeout, for the bar; null without a timeout. */
export function shareOfLimit(progress: JobProgress): number | null {
  const { quiet_seconds: quiet, limit_seconds: limit } = progress;
  return quiet === null || limit === null || limit <= 0 ? null : Math.min(1, quiet / limit);
}
