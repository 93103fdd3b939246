/** What pairs of nodes measured, in words and in order. Pure. */
import type { Culprit, LocalisationSummary, LocalisationVerdict, Pair, Round } from "@/api/types";
import { humanize, percent, plural, quantity } from "@/lib/format";
import type { Look } from "@/lib/states";

const look = (label: string, tone: Look["tone"], glyph: Look["glyph"], about: string): Look => ({
  label,
  tone,
  glyph,
  about,
});

export const pairLook: Record<Pair["state"], Look> = {
  waiting: look("Waiting", "unknown", "ring", "A node has not fetched its order"),
  measuring: look("Measuring", "validating", "half", "Both nodes have their order"),
  ok: look("Measured", "validating", "dot", "Both sides answered; the verdict says whether that is slow"),
  hung: look("Hung", "quarantined", "cross", "Begun by both, not ended"),
  missing: look("Missing", "unknown", "question", "No answer, or it could not run: nothing is known of it"),
};

export const stateLook: Record<LocalisationSummary["state"], Look> = {
  running: look("Running", "validating", "half", "Rounds are being measured"),
  done: look("Ended", "healthy", "check", "The verdict stands"),
  cancelled: look("Called off", "unknown", "question", "Ended without a verdict: nobody is known to be well"),
};

/** The largest message's speed: what a training step is made of; null where nothing was measured. */
export function speedOf({ bandwidth }: Pick<Pair, "bandwidth">): number | null {
  const [largest] = Object.entries(bandwidth).sort(([a], [b]) => Number(b) - Number(a));
  return largest ? largest[1] : null;
}

export const speedText = (pair: Pick<Pair, "bandwidth">) => quantity(speedOf(pair), "B", true);

const rank: Record<Pair["state"], number> = { hung: 0, missing: 1, measuring: 2, waiting: 3, ok: 4 };

/** Hung ones first, then the unknown, then the slowest. */
export function pairOrder(a: Pair, b: Pair): number {
  return rank[a.state] - rank[b.state] || (speedOf(a) ?? 0) - (speedOf(b) ?? 0);
}

/** "Cable leaf-1, spine-2"; a node is named by the link beside it. */
export const culpritName = ({ kind, name }: Pick<Culprit, "kind" | "name">) =>
  kind === "node" ? humanize(kind) : `${humanize(kind)} ${name.join(", ")}`;

/** The pairs that speak against a culprit, by round and ends: they are what a round found. */
export function slowPairs(verdict: LocalisationVerdict | null): Set<string> {
  const all = verdict?.culprits.flatMap((culprit) => culprit.evidence) ?? [];
  return new Set(all.map((witness) => pairKey(witness.round, witness)));
}

export const pairKey = (round: number, { a, b }: Pick<Pair, "a" | "b">) =>
  `${round}/${[a, b].sort().join("/")}`;

export const slowLook = look("Slow", "suspect", "triangle", "It speaks against what the verdict names");

export function roundText({ number, pairs }: Round): string {
  const answered = pairs.filter((p) => p.state !== "waiting" && p.state !== "measuring").length;
  return `Round ${number}: ${answered} of ${plural(pairs.length, "pair")} answered`;
}

/** The verdict in one sentence. Nobody named while some are unknown is not "nobody is slow". */
export function verdictText(verdict: LocalisationVerdict): string {
  const { culprits, unknown, good, rounds } = verdict;
  const open = Object.keys(unknown).length;
  const after = `after ${plural(rounds, "round")}`;
  if (culprits.length > 0)
    return `${plural(culprits.length, "culprit")} named ${after}; ${plural(good.length, "node")} cleared.`;
  if (open > 0)
    return `Nobody is named ${after}, and ${plural(open, "node")} ${open === 1 ? "stays" : "stay"} unknown.`;
  return `Nobody is slow: all pairs measured alike ${after}.`;
}

export const noiseText = ({ noise }: LocalisationVerdict) =>
  noise === null ? "Scatter between like pairs is unknown." : `Like pairs scatter by ${percent(noise)}.`;
