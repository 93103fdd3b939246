/** A plan as rows to compare: predicted and actual times on one scale. */
import type { Alternative, Plan } from "@/api/types";
import { phaseOrder } from "@/charts/phase-bar";
import { humanize, integer } from "@/lib/format";
import { ranksText } from "./lifecycle-model";

export interface PlanRow {
  alternative: Alternative;
  chosen: boolean;
  /** The prediction by phase; one unnamed phase where only the total is known. */
  parts: Record<string, number>;
}

export interface PlanTable {
  rows: PlanRow[];
  phases: string[];
  /** Seconds of a full-width bar. */
  scale: number;
  actual: { seconds: number; parts: Record<string, number> } | null;
  /** Actual over predicted of the chosen one. */
  accuracy: number | null;
}

const sum = (parts: Record<string, number>) => Object.values(parts).reduce((a, b) => a + b, 0);

/** Return the phases of a measured recovery without totals. */
export function measuredParts(parts: Record<string, number>, total: number | null): Record<string, number> {
  const { total: _total, ...rest } = parts;
  const known = Object.fromEntries(Object.entries(rest).filter(([, s]) => Number.isFinite(s) && s > 0));
  if (Object.keys(known).length === 0) return total === null ? {} : { total };
  return known;
}

export function planTable(plan: Plan): PlanTable {
  const rows = plan.alternatives.map((alternative): PlanRow => {
    const parts =
      sum(alternative.parts) > 0
        ? alternative.parts
        : alternative.seconds === null
          ? {}
          : { total: alternative.seconds };
    return { alternative, chosen: alternative.strategy === plan.chosen, parts };
  });
  // The chosen strategy first, then by cost; infeasible ones last.
  rows.sort(
    (a, b) =>
      Number(b.chosen) - Number(a.chosen) ||
      Number(b.alternative.feasible) - Number(a.alternative.feasible) ||
      (a.alternative.cost_seconds ?? Number.POSITIVE_INFINITY) -
        (b.alternative.cost_seconds ?? Number.POSITIVE_INFINITY),
  );
  const actual =
    plan.actual_seconds === null
      ? null
      : { seconds: plan.actual_seconds, parts: measuredParts(plan.actual_parts, plan.actual_seconds) };
  const chosen = rows.find((row) => row.chosen);
  const scale = Math.max(1e-6, ...rows.map((row) => sum(row.parts)), actual ? sum(actual.parts) : 0);
  const phases = phaseOrder([
    ...rows.flatMap((row) => Object.keys(row.parts)),
    ...Object.keys(actual?.parts ?? {}),
  ]);
  const predicted = chosen?.alternative.seconds ?? null;
  const accuracy = actual && predicted ? actual.seconds / predicted : null;
  return { rows, phases, scale, actual, accuracy };
}

const SOURCES: Partial<Record<Alternative["restores"][number]["source"], string>> = {
  live: "keep their state",
  local_slot: "from the local slot on their own node",
  peer_copy: "from a peer copy",
  parity: "rebuilt from parity",
  disk: "from disk",
};

/** The restore source of every rank, grouped by source, moved ranks first. */
export function restoreLines(alternative: Alternative): string[] {
  const groups = new Map<string, Alternative["restores"]>();
  for (const restore of alternative.restores) {
    const from = restore.from_nodes.length > 0 ? ` on ${restore.from_nodes.join(", ")}` : "";
    const key = (SOURCES[restore.source] ?? humanize(restore.source)) + from;
    groups.set(key, [...(groups.get(key) ?? []), restore]);
  }
  const lines = [...groups]
    .sort(([, a], [, b]) => Number(a[0]?.source === "live") - Number(b[0]?.source === "live"))
    .map(([source, restores]) => {
      const text = ranksText(restores.map((restore) => restore.rank));
      const one = restores.length === 1;
      const words = one
        ? source.replace("keep their state", "keeps its state").replace("their own", "its own")
        : source;
      return `${text.charAt(0).toUpperCase()}${text.slice(1)} ${words}`;
    });
  if (alternative.left_out > 0) {
    lines.push(`${integer(alternative.left_out)} more are not listed`);
  }
  return lines;
}
