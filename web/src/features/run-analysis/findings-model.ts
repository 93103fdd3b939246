/** A job's findings for the job page: recommendations apart from faults, faults at their steps. */
import type { Finding } from "@/api/types";
import type { Mark } from "@/charts/chart-options";
import { humanize } from "@/lib/format";
import { severity, statusStyleOf } from "@/lib/status-styles";

const ADVICE: ReadonlySet<string> = new Set(["stage_imbalance", "sequence_imbalance", "gc_jitter"]);

export const isAdvice = (finding: Pick<Finding, "kind">) => ADVICE.has(finding.kind);

/** Return the active recommendations, newest first. */
export const recommendationsIn = (findings: readonly Finding[]): Finding[] =>
  findings.filter((finding) => finding.active && isAdvice(finding)).sort((a, b) => b.time - a.time);

/** Return the step that a finding names; null without one. */
export const ownStep = ({ evidence }: Finding): number | null =>
  evidence.numbers.step ?? evidence.numbers.first_step ?? null;

/** Return the step of a finding: its own, else the newest step of its evidence, else null. */
export function stepOf(finding: Finding): number | null {
  const own = ownStep(finding);
  if (own !== null) return own;
  const ends = finding.evidence.series.filter((s) => s.x_is === "step").map((s) => s.x.at(-1) ?? null);
  return ends.find((end) => end !== null) ?? null;
}

/** Format an entity: "rank 3 → rank 4", "rank 3", or the node and device. */
export function entityText({ rank, peer, node, device }: Finding["entity"]): string {
  if (rank !== null && peer !== null) return `rank ${rank} → rank ${peer}`;
  if (rank !== null) return `rank ${rank}`;
  return [node, device].filter(Boolean).join(" ");
}

export interface MarkedFinding {
  finding: Finding;
  step: number;
}

/** Return the faults with a step on the axis, by step. */
export function onAxis(findings: readonly Finding[], steps: readonly number[]): MarkedFinding[] {
  const [first, last] = [steps[0], steps.at(-1)];
  if (first === undefined || last === undefined) return [];
  return findings
    .filter((finding) => !isAdvice(finding))
    .map((finding) => ({ finding, step: stepOf(finding) }))
    .filter((m): m is MarkedFinding => m.step !== null && m.step >= first && m.step <= last)
    .sort((a, b) => a.step - b.step);
}

export const marksOf = (marked: readonly MarkedFinding[]): Mark[] =>
  marked.map(({ finding, step }) => ({
    x: step,
    tone: statusStyleOf(severity, finding.severity).tone,
    label: humanize(finding.kind),
  }));

/** Return the active faults of each rank as text. */
export function againstRanks(findings: readonly Finding[]): Map<number, string> {
  const found = new Map<number, string>();
  for (const finding of findings) {
    const { rank } = finding.entity;
    if (!finding.active || rank === null || isAdvice(finding)) continue;
    const before = found.get(rank);
    found.set(rank, before ? `${before}, ${humanize(finding.kind)}` : humanize(finding.kind));
  }
  return found;
}
