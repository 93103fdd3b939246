/** The status of detectors as text. A detector that is not active is not evidence of health. */
import { humanize, plural } from "@/lib/format";
import type { StatusStyle } from "@/lib/status-styles";
import type { DetectorState, DetectorStatus } from "./types";

export const detectorStates: Record<DetectorState, StatusStyle> = {
  active: {
    label: "Active",
    tone: "validating",
    glyph: "dot",
    about: "Has learned its baseline and evaluates the job",
  },
  learning: {
    label: "Learning",
    tone: "draining",
    glyph: "half",
    about: "Still learns its baseline: a missing finding is not evidence of health",
  },
  abstaining: {
    label: "Abstaining",
    tone: "suspect",
    glyph: "triangle",
    about: "The data is too noisy or not comparable: a missing finding is not evidence of health",
  },
  idle: {
    label: "Idle",
    tone: "unknown",
    glyph: "question",
    about: "Has no data: a missing finding is not evidence of health",
  },
};

/** The order of states in the list. */
const ORDER: readonly DetectorState[] = ["abstaining", "learning", "active", "idle"];

export function sortedDetectors(detectors: readonly DetectorStatus[]): DetectorStatus[] {
  const place = (detector: DetectorStatus) => ORDER.indexOf(detector.state); // an unknown state comes first
  return [...detectors].sort((a, b) => place(a) - place(b) || a.name.localeCompare(b.name));
}

/** Return the number of detectors by state: "4 detectors: 2 active, 1 abstaining, 1 idle". */
export function headline(detectors: readonly DetectorStatus[]): string {
  const counts = (["active", "learning", "abstaining", "idle"] as const)
    .map((state) => [detectors.filter((detector) => detector.state === state).length, state] as const)
    .filter(([count]) => count > 0);
  return `${plural(detectors.length, "detector")}: ${counts.map(([count, state]) => `${count} ${state}`).join(", ")}`;
}

/** Return the reason of a detector, or the description of its state. */
export const reasonOf = (detector: DetectorStatus): string =>
  detector.reason || (detectorStates[detector.state] ?? detectorStates.idle).about;

export const nameOf = (detector: Pick<DetectorStatus, "name">) => humanize(detector.name);
