/** Modes and status of detectors as text. */
import type { Detector, DetectorMode } from "@/api/types";
import { plural } from "@/lib/format";
import type { StatusStyle } from "@/lib/status-styles";

export const detectorModes: Record<DetectorMode, StatusStyle> = {
  default: { label: "Default", tone: "unknown", glyph: "dot", about: "As the settings of the site say" },
  propose: {
    label: "Only propose",
    tone: "draining",
    glyph: "half",
    about: "A person accepts each proposal",
  },
  record: { label: "Only record", tone: "validating", glyph: "ring", about: "Findings open no incident" },
};

/** Whether a detector matches a search: every word is in its name, its description, or its finding kinds. */
export function matchesDetector(detector: Detector, query: string): boolean {
  const text = `${detector.name} ${detector.about} ${detector.kinds.join(" ")}`.toLowerCase();
  return query
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}

/** Describe what a detector does now: for the fleet, or in how many running jobs. */
export function runningText({ is_per_job, jobs }: Detector): string {
  if (!is_per_job) return "runs for the fleet";
  const states = Object.entries(jobs);
  if (states.length === 0) return "no running job";
  return states.map(([state, count]) => `${state} in ${plural(count, "job")}`).join(", ");
}
