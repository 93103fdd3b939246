/** Figures of a report in words, and what became of them since the period before. */
import type { BetweenFailures, ComponentReliability, DrainCounts, ReliabilitySummary } from "@/api/types";
import { integer, MISSING, percent } from "@/lib/format";

/** Hours with a unit that fits: 34 h, 12 d, 1.4 y. */
export function hours(value: number | null | undefined): string {
  if (value == null || !Number.isFinite(value)) return MISSING;
  if (value < 100) return `${Number(value.toPrecision(3))} h`;
  if (value < 24 * 1000) return `${Number((value / 24).toPrecision(3))} d`;
  return `${Number((value / 8766).toPrecision(3))} y`;
}

/** GPU hours: 12.3, 4 120. */
export const gpuHours = (value: number): string =>
  value !== 0 && value < 100 ? String(Number(value.toPrecision(3))) : integer(value);

/** Limits of a mean time between failures of nodes, or of GPUs. */
export function limits(found: BetweenFailures, of = "nodes"): string {
  if (found.exposure_hours === 0) return `no time in service of ${of} is known`;
  if (found.failures === 0)
    return `no failure in ${hours(found.exposure_hours)} of ${of}; at least ${hours(found.low)}`;
  return `95 %: ${hours(found.low)} to ${hours(found.high)}`;
}

/** False drains of those that are decided, with the limits of their share. */
export function falseDrains(found: DrainCounts): string {
  if (found.ratio === null) return MISSING;
  const limits = `95 %: ${percent(found.low)} to ${percent(found.high)}`;
  return `${found.false_drains} of ${found.false_drains + found.confirmed} (${limits})`;
}

/** How a share changed since the period before, in percentage points. */
export function change(now: number | null, before: number | null): string {
  if (now === null || before === null) return "no period before to compare with";
  const points = (now - before) * 100;
  const text =
    Math.abs(points) < 0.05 ? "unchanged" : `${points > 0 ? "+" : "−"}${Math.abs(points).toFixed(1)} points`;
  return `${text} (before: ${percent(before)})`;
}

/** The parts of what was lost, with their share. */
export function lostParts(summary: ReliabilitySummary): { name: string; hours: number; share: number }[] {
  const lost = summary.lost_gpu_hours;
  const parts = [
    { name: "Detection", hours: lost.detection },
    { name: "Recovery", hours: lost.recovery },
    { name: "Repeated steps", hours: lost.repeated },
    { name: "Absent ranks", hours: lost.degraded },
    { name: "Nodes out of service", hours: lost.out_of_service },
  ];
  const total = parts.reduce((sum, part) => sum + part.hours, 0);
  return parts.map((part) => ({ ...part, share: total > 0 ? part.hours / total : 0 }));
}

export const componentLabel: Record<ComponentReliability["component"], string> = {
  gpu: "GPU",
  gpu_link: "GPU link",
  network: "Network",
  host: "Host",
  storage: "Storage",
  other: "No component",
  unknown: "Not known",
};
