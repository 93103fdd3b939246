/** A job's findings as the job page needs them: advice apart from faults, faults at their steps. Pure. */
import type { Finding } from "@/api/types";
import type { Mark } from "@/charts/chart-options";
import { humanize } from "@/lib/format";
import { lookOf, severity } from "@/lib/states";

const ADVICE: ReadonlySet<string> = new Set(["stage_imbalance", "sequence_imbalance", "gc_jitter"]);

export const isAdvice = (finding: Pick<Finding, "kind">) => ADVICE.has(finding.kind);

/** Advice that holds now, newest first. */
export const adviceIn = (findings: readonly Finding[]): Finding[] =>
  findings.filter((finding) => finding.active && isAdvice(finding)).sort((a, b) => b.time - a.time);

/** The step that a finding itself names; null where it names none. */
export const ownStep = ({ evidence }: Finding): number | null =>
  evidence.numbers.step ?? evidence.numbers.first_step ?? null;

/** The step a finding is about: its own, else the newest step of its evidence; null where it has neither. */
export function stepOf(finding: Finding): number | null {
  const own = ownStep(finding);
  if (own !== null) return own;
  const ends = finding.evidence.series.filter((s) => s.x_is === "step").map((s) => s.x.at(-1) ?? null);
  return ends.find((end) => end !== null) ?? null;
}

/** "rank 3 → rank 4", "rank 3", or the node and device where no rank is named. */
export function entityText({ rank, peer, node, device }: Finding["entity"]): string {
  if (rank !== null && peer !== null) return `rank ${rank} → rank ${peer}`;
  if (rank !== null) return `rank ${rank}`;
  return [node, device].filter(Boolean).join(" ");
}

export interface MarkedFinding {
  finding: Finding;
  step: number;
}

/** Faults whose step lies on the axis, by step. */
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
    tone: lookOf(severity, finding.severity).tone,
    label: humanize(finding.kind),
  }));

/** What holds against each rank now, as one text a rank. */
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
