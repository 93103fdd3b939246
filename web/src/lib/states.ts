/** How every state looks: a word, a tone and a glyph, so that no meaning rests on colour alone. */
import type { HealthState, IncidentState, JobState, RankState, Severity, Verdict } from "@/api/types";

export type Tone = "healthy" | "suspect" | "draining" | "quarantined" | "validating" | "unknown";
export type GlyphName =
  | "dot"
  | "triangle"
  | "down"
  | "cross"
  | "half"
  | "question"
  | "check"
  | "ring"
  | "bang"
  | "bars";

export interface Look {
  label: string;
  tone: Tone;
  glyph: GlyphName;
  about: string;
}

const look = (label: string, tone: Tone, glyph: GlyphName, about: string): Look => ({
  label,
  tone,
  glyph,
  about,
});

export const health: Record<HealthState, Look> = {
  healthy: look("Healthy", "healthy", "dot", "Reports on time; nothing found against it"),
  suspect: look("Suspect", "suspect", "triangle", "A finding stands against it"),
  draining: look("Draining", "draining", "down", "Gets no new work; running work moves away"),
  quarantined: look(
    "Quarantined",
    "quarantined",
    "cross",
    "Kept from work until a check of equal power passes",
  ),
  validating: look("Validating", "validating", "half", "Benchmarks are running on it"),
  unknown: look("Unknown", "unknown", "question", "No data: not known to be healthy"),
};

/** The order of the enumeration, which is what the bytes of a state snapshot index. */
export const healthOrder: HealthState[] = [
  "unknown",
  "healthy",
  "suspect",
  "draining",
  "quarantined",
  "validating",
];
/** What needs eyes first. */
export const healthUrgency: HealthState[] = [
  "quarantined",
  "suspect",
  "unknown",
  "draining",
  "validating",
  "healthy",
];

export const severity: Record<Severity, Look> = {
  info: look("Info", "validating", "dot", "For the record"),
  warning: look("Warning", "suspect", "triangle", "May cost time"),
  critical: look("Critical", "quarantined", "bang", "Costs time now"),
};

export const verdict: Record<Verdict, Look> = {
  pass: look("Pass", "healthy", "check", "Every metric is inside its criterion"),
  warn: look("Warn", "suspect", "triangle", "A metric is near the edge of its criterion"),
  fail: look("Fail", "quarantined", "cross", "A metric is outside its criterion"),
  unknown: look("Unknown", "unknown", "question", "Could not be judged, which is not a pass"),
};

export const job: Record<JobState, Look> = {
  running: look("Running", "healthy", "dot", "Steps are being committed"),
  recovering: look("Recovering", "suspect", "half", "A failure is being repaired"),
  finished: look("Finished", "healthy", "check", "All steps were committed"),
  failed: look("Failed", "quarantined", "cross", "Ended without finishing"),
};

export const rank: Record<RankState, Look> = {
  running: look("Running", "healthy", "dot", "Takes part in the current generation"),
  lost: look("Lost", "quarantined", "cross", "Its process is gone"),
  restoring: look("Restoring", "suspect", "half", "Its state is being brought back"),
};

export const incident: Record<IncidentState, Look> = {
  open: look("Open", "quarantined", "bang", "Found, nothing done yet"),
  acting: look("Acting", "suspect", "half", "A plan is being carried out"),
  recovered: look("Recovered", "validating", "ring", "Training goes on; not yet verified"),
  verified: look("Verified", "healthy", "check", "Later steps and digests agree"),
  closed: look("Closed", "unknown", "dot", "Done"),
};

export const incidentOrder: IncidentState[] = ["open", "acting", "recovered", "verified", "closed"];

/** An enumeration may grow before this dashboard knows it: an unmapped value is shown as itself, as unknown. */
export function lookOf(table: Record<string, Look>, value: string): Look {
  return table[value] ?? look(value, "unknown", "question", "This dashboard does not know this state yet");
}
