/** The label, tone, and glyph of every state, so that no meaning depends on color alone. */
import type {
  CheckpointStep,
  HealthState,
  IncidentState,
  JobState,
  Owner,
  RankState,
  RecommendedAction,
  RemediationRule,
  RemediationState,
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

export interface StatusStyle {
  label: string;
  tone: Tone;
  glyph: GlyphName;
  about: string;
}

const style = (label: string, tone: Tone, glyph: GlyphName, about: string): StatusStyle => ({
  label,
  tone,
  glyph,
  about,
});

export const health: Record<HealthState, StatusStyle> = {
  healthy: style("Healthy", "healthy", "dot", "Reports on time and has no active finding"),
  suspect: style("Suspect", "suspect", "triangle", "A finding or a failed validation is active"),
  draining: style("Draining", "draining", "down", "Gets no new work; running work moves away"),
  quarantined: style("Quarantined", "quarantined", "cross", "Out of service until a validation passes"),
  validating: style("Validating", "validating", "half", "Benchmarks run on the node"),
  unknown: style("Unknown", "unknown", "question", "No data, so its health is unknown"),
};

/** The order of the enumeration; the bytes of a heatmap index it. */
export const healthOrder: HealthState[] = [
  "unknown",
  "healthy",
  "suspect",
  "draining",
  "quarantined",
  "validating",
];
/** States in the order of urgency. */
export const healthUrgency: HealthState[] = [
  "quarantined",
  "suspect",
  "unknown",
  "draining",
  "validating",
  "healthy",
];

export const severity: Record<Severity, StatusStyle> = {
  info: style("Info", "validating", "dot", "For information"),
  warning: style("Warning", "suspect", "triangle", "May cost training time"),
  critical: style("Critical", "quarantined", "bang", "Costs training time now"),
};

export const verdict: Record<Verdict, StatusStyle> = {
  pass: style("Pass", "healthy", "check", "Every metric is inside its criterion"),
  warn: style("Warn", "suspect", "triangle", "A metric is near the edge of its criterion"),
  fail: style("Fail", "quarantined", "cross", "A metric is outside its criterion"),
  unknown: style("Unknown", "unknown", "question", "Not enough data for a verdict; this does not pass"),
};

export const job: Record<JobState, StatusStyle> = {
  running: style("Running", "healthy", "dot", "Steps are committed"),
  recovering: style("Recovering", "suspect", "half", "A recovery is in progress"),
  finished: style("Finished", "healthy", "check", "All steps were committed"),
  failed: style("Failed", "quarantined", "cross", "Ended without finishing"),
  unknown: style("Unknown", "unknown", "question", "A newer version reports a state unknown here"),
};

export const rank: Record<RankState, StatusStyle> = {
  running: style("Running", "healthy", "dot", "Takes part in the current generation"),
  lost: style("Lost", "quarantined", "cross", "Its process has ended"),
  restoring: style("Restoring", "suspect", "half", "Its state is being restored"),
  unknown: style("Unknown", "unknown", "question", "A newer version reports a state unknown here"),
};

export const checkpointStep: Record<CheckpointStep["state"], StatusStyle> = {
  complete: style("Complete", "healthy", "check", "All parts and the manifest are there"),
  incomplete: style("Incomplete", "validating", "half", "It is being written, or was interrupted"),
  on_nodes: style("On node disks", "validating", "ring", "For a recovery of this job, and for --resume"),
  given_up: style("Given up", "unknown", "cross", "The job went back behind this step"),
  damaged: style("Damaged", "quarantined", "bang", "The manifest or a file of it cannot be read"),
  unknown: style("Unknown", "unknown", "question", "A newer version reports a state unknown here"),
};

export const incident: Record<IncidentState, StatusStyle> = {
  open: style("Open", "quarantined", "bang", "Detected; no action yet"),
  recovering: style("Recovering", "suspect", "half", "A recovery plan is being executed"),
  recovered: style("Recovered", "validating", "ring", "Training resumed; not yet verified"),
  verified: style("Verified", "healthy", "check", "Later steps and digests match"),
  closed: style("Closed", "unknown", "dot", "No further work on it"),
};

export const incidentOrder: IncidentState[] = ["open", "recovering", "recovered", "verified", "closed"];

/** Recommended actions, mildest first. From "reset the GPU" on, work has to leave the node first. */
export const recommendedAction: Record<RecommendedAction, StatusStyle> = {
  none: style("No action", "unknown", "dot", "For information"),
  monitor: style("Monitor", "validating", "ring", "No action now; repeats and trends are counted"),
  restart_job: style("Restart the job", "validating", "half", "The node stays in service"),
  migrate_ranks: style(
    "Migrate the ranks",
    "validating",
    "half",
    "Ranks move to standbys on other nodes; the node stays in service",
  ),
  reset_gpu: style("Reset the GPU", "suspect", "triangle", "Work leaves the node first"),
  reboot_node: style("Reboot the node", "suspect", "triangle", "Work leaves the node first"),
  inspect_node: style(
    "Inspect the node",
    "quarantined",
    "bang",
    "An operator checks diagnostics, cables, and hardware",
  ),
  replace: style("Replace the device", "quarantined", "cross", "Return it to the manufacturer"),
};

export const recommendedActionOrder: RecommendedAction[] = [
  "none",
  "monitor",
  "restart_job",
  "migrate_ranks",
  "reset_gpu",
  "reboot_node",
  "inspect_node",
  "replace",
];

export const proposal: Record<RemediationState, StatusStyle> = {
  proposed: style("Proposed", "draining", "down", "Waits for an operator"),
  held: style("Held", "suspect", "half", "A rule holds it; an operator may accept it"),
  accepted: style(
    "Accepted",
    "validating",
    "ring",
    "In progress: the node drains, or jobs carry out requests",
  ),
  dismissed: style("Dismissed", "unknown", "cross", "An operator dismissed it"),
  done: style("Done", "healthy", "check", "The node passed a validation, or jobs carried out their requests"),
  superseded: style("Superseded", "unknown", "dot", "The fault cleared, or a job rejected it"),
  failed: style("Failed", "suspect", "cross", "A request failed; see the job page"),
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

export const ruleVerdict: Record<RemediationRule["verdict"], StatusStyle> = {
  allow: style("Allows", "healthy", "check", "The rule allows it"),
  hold: style("Holds", "suspect", "half", "An operator must accept it"),
  deny: style("Denies", "quarantined", "cross", "Must not be executed"),
};

export const owner: Record<Owner, StatusStyle> = {
  system: style("Mainstay", "validating", "ring", "Mainstay set this state and may change it"),
  operator: style("Operator", "healthy", "dot", "An operator set this state; only an operator changes it"),
  external: style(
    "External system",
    "draining",
    "down",
    "Another system set this state; Mainstay does not change it",
  ),
};

/** Return the style of a value. A newer service may send values that are not in the table. */
export function statusStyleOf(table: Record<string, StatusStyle>, value: string): StatusStyle {
  return table[value] ?? style(value, "unknown", "question", "This dashboard does not know this state");
}
