/** The stages of an incident with their times, for list, overview, and page. */
import type { Incident, IncidentState } from "@/api/types";
import { deviceName } from "@/features/devices/device-labels";
import { readable } from "@/lib/format";

export interface LifeStep {
  state: IncidentState;
  label: string;
  at: number | null;
  /** Seconds since the previous stage that has a time. */
  after: number | null;
}

const LABELS: Record<IncidentState, string> = {
  open: "Opened",
  recovering: "Recovering",
  recovered: "Recovered",
  verified: "Verified",
  closed: "Closed",
};

export function lifecycleSteps(incident: Incident): LifeStep[] {
  const times: [IncidentState, number | null][] = [
    ["open", incident.opened_at],
    ["recovering", incident.recovering_at],
    ["recovered", incident.recovered_at],
    ["verified", incident.verified_at],
    ["closed", incident.closed_at],
  ];
  let previous: number | null = null;
  return times.map(([state, at]) => {
    const after = at !== null && previous !== null ? Math.max(0, at - previous) : null;
    if (at !== null) previous = at;
    return { state, label: LABELS[state], at, after };
  });
}

/** Return the duration in seconds: to recovery, else to closing, else until now. */
export function incidentDuration(incident: Incident, now: number): number {
  return Math.max(0, (incident.recovered_at ?? incident.closed_at ?? now) - incident.opened_at);
}

export const isActive = (incident: Incident) => incident.recovered_at === null && incident.closed_at === null;

/** Return the subject in one line: the job and its ranks, else the device, else the node. */
export function subject(incident: Incident): string {
  const parts: string[] = [];
  if (incident.job) parts.push(incident.job);
  if (incident.ranks.length > 0) parts.push(ranksText(incident.ranks));
  if (incident.node) parts.push(incident.node);
  if (incident.device && incident.device !== "host") parts.push(deviceName(incident.device));
  return parts.join(" · ");
}

/** Format ranks as `rank 3` or `ranks 0–3, 7`; a long list ends with its count. */
export function ranksText(ranks: readonly number[]): string {
  const sorted = [...new Set(ranks)].sort((a, b) => a - b);
  const runs: [number, number][] = [];
  for (const rank of sorted) {
    const last = runs.at(-1);
    if (last && last[1] === rank - 1) last[1] = rank;
    else runs.push([rank, rank]);
  }
  const text = runs
    .slice(0, 4)
    .map(([a, b]) => (a === b ? `${a}` : b === a + 1 ? `${a}, ${b}` : `${a}–${b}`));
  const more = runs.length > 4 ? ` … (${sorted.length} ranks)` : "";
  return `${sorted.length === 1 ? "rank" : "ranks"} ${text.join(", ")}${more}`;
}

/** Return the title without its final period. */
export const titleOf = (incident: Pick<Incident, "title">) => readable(incident.title.replace(/\.$/, ""));

/** Return the summary if it differs from the title. */
export const summaryOf = (incident: Pick<Incident, "title" | "summary">) =>
  incident.summary === incident.title ? "" : readable(incident.summary);
