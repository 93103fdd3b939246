/** How every state looks: a word, a tone and a glyph, so that no meaning rests on colour alone. */
import type {
  HealthState,
  IncidentState,
  JobState,
  Owner,
  RankState,
  RemediationRule,
  RemediationState,
  Remedy,
  Severity,
  Verdict,
} from "@/api/types";

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

/** What would mend it, from the mildest to the last. From "reset the GPU" on, work has to leave the node first. */
export const remedy: Record<Remedy, Look> = {
  none: look("Nothing to do", "unknown", "dot", "For the record"),
  watch: look("Watch", "validating", "ring", "Nothing now; it counts towards a repeat or a trend"),
  restart_app: look("Restart the job", "validating", "half", "The node stays in service"),
  migrate: look(
    "Move the ranks",
    "validating",
    "half",
    "A job's ranks go to standbys elsewhere; the node stays",
  ),
  reset_gpu: look("Reset the GPU", "suspect", "triangle", "Work leaves the node first"),
  reboot_node: look("Reboot the node", "suspect", "triangle", "Work leaves the node first"),
  inspect: look("Inspect", "quarantined", "bang", "A person has to look: diagnostics, cables, mechanics"),
  replace: look("Replace", "quarantined", "cross", "Return to the manufacturer"),
};

export const remedyOrder: Remedy[] = [
  "none",
  "watch",
  "restart_app",
  "migrate",
  "reset_gpu",
  "reboot_node",
  "inspect",
  "replace",
];

export const proposal: Record<RemediationState, Look> = {
  proposed: look("Proposed", "draining", "down", "Waits for a decision"),
  held: look("Held", "suspect", "half", "A rule holds it back; a person may still accept it"),
  accepted: look(
    "Accepted",
    "validating",
    "ring",
    "It is under way: a drain of the node, or ranks that move",
  ),
  dismissed: look("Dismissed", "unknown", "cross", "A person decided against it"),
  done: look("Done", "healthy", "check", "The node passed a validation, or its ranks have moved"),
  superseded: look("Superseded", "unknown", "dot", "What it was for is gone, or a job refused"),
  failed: look("Failed", "suspect", "cross", "Ranks were to move and could not; the job says why"),
};

export const proposalOrder: RemediationState[] = [
  "proposed",
  "held",
  "accepted",
  "done",
  "failed",
  "dismissed",
  "superseded",
];

export const ruleVerdict: Record<RemediationRule["verdict"], Look> = {
  allow: look("Allows", "healthy", "check", "Nothing against it"),
  hold: look("Holds", "suspect", "half", "Not by the machine alone"),
  deny: look("Denies", "quarantined", "cross", "Must not be done"),
};

export const owner: Record<Owner, Look> = {
  machine: look("Machine", "validating", "ring", "Decided here, by itself; may be undone here"),
  person: look("Person", "healthy", "dot", "Decided by a person; only a person undoes it"),
  outside: look("Outside", "draining", "down", "Decided by another system; never undone here"),
};

/** An enumeration may grow before this dashboard knows it: an unmapped value is shown as itself, as unknown. */
export function lookOf(table: Record<string, Look>, value: string): Look {
  return table[value] ?? look(value, "unknown", "question", "This dashboard does not know this state yet");
}
