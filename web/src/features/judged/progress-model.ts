/** Where every rank stands, and who is behind whom. Pure. */
import type { Job, TopologyRank } from "@/api/types";
import { age, duration, integer } from "@/lib/format";
import type { Look } from "@/lib/states";
import type { JobProgress, ProgressState, RankProgress } from "./types";

export const progressLooks: Record<ProgressState, Look> = {
  moving: { label: "Moving", tone: "healthy", glyph: "dot", about: "Collectives complete" },
  waiting: {
    label: "Waiting",
    tone: "suspect",
    glyph: "half",
    about: "No collective has completed for longer than usual; not yet long enough to call it a hang",
  },
  masked: {
    label: "Masked",
    tone: "validating",
    glyph: "ring",
    about: "In a phase that may rightly be silent: no hang is called in it",
  },
  hung: { label: "Hung", tone: "quarantined", glyph: "cross", about: "No collective completes any more" },
  unknown: {
    label: "Unknown",
    tone: "unknown",
    glyph: "question",
    about: "No rank reports its progress: not known to move",
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

/** What one rank has begun less than its group's foremost, per kind; null where that cannot be told. */
export interface RankRow extends RankProgress {
  behind: Record<string, number | null>;
  /** Behind in the innermost group in which anybody is, while the job does not move: the others wait for it. */
  lags: boolean;
}

/** The group of a kind that a rank belongs to, as far as the topology tells; null: it does not tell. */
function groupKey(kind: string, place: TopologyRank | undefined): string | null {
  if (kind === "world") return "";
  if (!place) return null;
  if (kind === "dp") return `${place.pp}/${place.tp}`;
  if (kind === "pp") return `${place.dp}/${place.tp}`;
  if (kind === "tp") return `${place.dp}/${place.pp}`;
  return null;
}

/** Kinds of group in which anything was ever begun; the others would be empty columns. */
export function kindsInUse(progress: JobProgress): string[] {
  return progress.kinds.filter((kind) =>
    progress.ranks.some((rank) => (rank.enqueued[kind] ?? 0) > 0 || (rank.completed[kind] ?? 0) > 0),
  );
}

/**
 * Rows with their lag, those that hold others up first, then by rank. While the job moves, ranks are heard at
 * different moments and always differ by some collectives: that is no lag, and nobody is marked. Marked are those in the innermost group that has any, who hold the groups around it up.
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
 * The innermost kind of group (the last of the kinds) in which a rank is behind. Who is behind further out may itself
 * wait for one who is behind further in.
 */
export const innermost = (rows: readonly RankRow[], kinds: readonly string[]): string | null =>
  [...kinds].reverse().find((kind) => rows.some((row) => (row.behind[kind] ?? 0) > 0)) ?? null;

/** The state as one sentence with its two numbers. */
export function stateSentence(progress: JobProgress): string {
  const { quiet_seconds: quiet, limit_seconds: limit, phase } = progress;
  const limitText = limit === null ? "no limit is learned yet" : `a hang is called after ${duration(limit)}`;
  switch (progress.state) {
    case "moving":
    case "waiting":
      return quiet === null
        ? `${limitText}.`
        : `${duration(quiet)} without a completed collective; ${limitText}.`;
    case "hung":
      return quiet === null
        ? "It was found to hang, and that still holds."
        : `No collective has completed for ${duration(quiet)}${limit === null ? "" : `; the limit is ${duration(limit)}`}.`;
    case "masked":
      if (quiet === null) return "In a phase that may be silent: no hang is called meanwhile.";
      return `${phase === null ? "In a silent phase" : `In ${phaseText(phase)}`}: ${duration(quiet)} without a completed collective, and no hang is called meanwhile.`;
    default: {
      const newest = lastHeard(progress);
      return newest === null
        ? "No rank reports its progress, so nobody knows whether the job moves."
        : `No rank has been heard for ${age(newest)}, so nobody knows whether the job moves.`;
    }
  }
}

/** Seconds since any rank was heard; null where none ever was. */
export function lastHeard(progress: Pick<JobProgress, "ranks">): number | null {
  const ages = progress.ranks.map((rank) => rank.age_seconds).filter((a): a is number => a !== null);
  return ages.length === 0 ? null : ages.reduce((a, b) => Math.min(a, b));
}

/** Who keeps the others waiting, in words; empty where nobody is behind. */
export function laggardText(rows: readonly RankRow[], kinds: readonly string[]): string {
  const culprits = rows.filter((row) => row.lags);
  if (culprits.length === 0) return "";
  const kind = innermost(culprits, kinds) ?? "world";
  const names = culprits.slice(0, 4).map((row) => row.rank);
  const who =
    culprits.length === 1
      ? `Rank ${names[0]} is`
      : `Ranks ${names.join(", ")}${culprits.length > 4 ? ` and ${integer(culprits.length - 4)} more are` : " are"}`;
  return `${who} behind the others in ${culprits.length === 1 ? "its" : "their"} ${groupName(kind)} group: what the others wait for has not been begun there.`;
}

/** `StepPhase` of the training SDK, by its number. */
const PHASES = ["train", "warm-up", "compile", "evaluate", "checkpoint"];
export const phaseText = (phase: number) => PHASES[phase] ?? `phase ${phase}`;

/** Share of the limit that has passed, for the bar; null where there is no limit. */
export function shareOfLimit(progress: JobProgress): number | null {
  const { quiet_seconds: quiet, limit_seconds: limit } = progress;
  return quiet === null || limit === null || limit <= 0 ? null : Math.min(1, quiet / limit);
}
