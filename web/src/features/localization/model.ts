/** The measurements of node pairs, as text and in order. */
import type { Culprit, LocalizationSummary, LocalizationVerdict, Pair, Round } from "@/api/types";
import { humanize, percent, plural, quantity } from "@/lib/format";
import type { StatusStyle } from "@/lib/status-styles";

const style = (
  label: string,
  tone: StatusStyle["tone"],
  glyph: StatusStyle["glyph"],
  about: string,
): StatusStyle => ({
  label,
  tone,
  glyph,
  about,
});

export const pairLook: Record<Pair["state"], StatusStyle> = {
  waiting: style("Waiting", "unknown", "ring", "A node has not fetched its task"),
  measuring: style("Measuring", "validating", "half", "Both nodes have their task"),
  ok: style(
    "Measured",
    "validating",
    "dot",
    "Both nodes answered; the verdict shows whether the pair is slow",
  ),
  hung: style("Hung", "quarantined", "cross", "Started by both nodes, but not ended"),
  missing: style("Missing", "unknown", "question", "No answer, or the measurement could not run"),
};

export const stateLook: Record<LocalizationSummary["state"], StatusStyle> = {
  running: style("Running", "validating", "half", "Rounds are in progress"),
  done: style("Ended", "healthy", "check", "The verdict is final"),
  cancelled: style("Canceled", "unknown", "question", "Ended without a verdict"),
};

/** Return the speed of the largest message; null without a measurement. */
export function speedOf({ bandwidth }: Pick<Pair, "bandwidth">): number | null {
  const [largest] = Object.entries(bandwidth).sort(([a], [b]) => Number(b) - Number(a));
  return largest ? largest[1] : null;
}

export const speedText = (pair: Pick<Pair, "bandwidth">) => quantity(speedOf(pair), "B", true);

const rank: Record<Pair["state"], number> = { hung: 0, missing: 1, measuring: 2, waiting: 3, ok: 4 };

/** Order pairs: hung first, then unknown, then slowest. */
export function pairOrder(a: Pair, b: Pair): number {
  return rank[a.state] - rank[b.state] || (speedOf(a) ?? 0) - (speedOf(b) ?? 0);
}

/** Return "Cable leaf-1, spine-2"; for a node only its kind, since a link beside it names it. */
export const culpritName = ({ kind, name }: Pick<Culprit, "kind" | "name">) =>
  kind === "node" ? humanize(kind) : `${humanize(kind)} ${name.join(", ")}`;

/** Return the pairs that are evidence against a culprit, by round and ends. */
export function slowPairs(verdict: LocalizationVerdict | null): Set<string> {
  const all = verdict?.culprits.flatMap((culprit) => culprit.evidence) ?? [];
  return new Set(all.map((witness) => pairKey(witness.round, witness)));
}

export const pairKey = (round: number, { a, b }: Pick<Pair, "a" | "b">) =>
  `${round}/${[a, b].sort().join("/")}`;

export const slowLook = style("Slow", "suspect", "triangle", "Evidence against a culprit of the verdict");

export function roundText({ number, pairs }: Round): string {
  const answered = pairs.filter((p) => p.state !== "waiting" && p.state !== "measuring").length;
  return `Round ${number}: ${answered} of ${plural(pairs.length, "pair")} answered`;
}

/** Return the verdict in one sentence. Unknown nodes do not count as healthy. */
export function verdictText(verdict: LocalizationVerdict): string {
  const { culprits, unknown, good, rounds } = verdict;
  const open = Object.keys(unknown).length;
  const after = `after ${plural(rounds, "round")}`;
  if (culprits.length > 0)
    return `${plural(culprits.length, "culprit")} named ${after}; ${plural(good.length, "node")} cleared.`;
  if (open > 0)
    return `No culprit named ${after}; ${plural(open, "node")} ${open === 1 ? "is" : "are"} unknown.`;
  return `No fault found: all pairs measured the same ${after}.`;
}

export const noiseText = ({ noise }: LocalizationVerdict) =>
  noise === null
    ? "The noise between comparable pairs is unknown."
    : `Noise between comparable pairs: ${percent(noise)}.`;
