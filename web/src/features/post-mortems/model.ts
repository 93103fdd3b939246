/** The facts of a post-mortem as labeled text. An unknown figure is "unknown", never 0. */
import type { PostMortem } from "@/api/types";
import { causeLabel } from "@/features/incidents/cause";
import { duration, integer } from "@/lib/format";
import { iso } from "@/lib/time";

export const UNKNOWN = "unknown";

export const known = (value: string | number | null): string => (value === null ? UNKNOWN : String(value));
export const seconds = (value: number | null, absent = UNKNOWN): string =>
  value === null ? absent : duration(value);
export const moment = (value: number | null, absent = UNKNOWN): string =>
  value === null ? absent : iso(value);
export const count = (value: number | null): string => (value === null ? UNKNOWN : integer(value));

export const gpuHours = (value: number | null): string => {
  if (value === null) return UNKNOWN;
  return value >= 1000 ? integer(value) : String(Number(value.toPrecision(3)));
};

/** A sum over jobs: a lower limit where something is not known of one of them. */
export const sum = (text: string, partial: boolean): string =>
  partial && text !== UNKNOWN ? `at least ${text}` : text;

export function culpritFacts({ incident, culprit }: PostMortem): [string, string][] {
  return [
    ["Cause", incident.cause === null ? UNKNOWN : causeLabel(incident.cause).label],
    ["Node", known(culprit.node)],
    ["Rack", known(culprit.rack)],
    [culprit.gpu === null ? "Device" : "GPU", known(culprit.gpu ?? culprit.device)],
    ["Serial number", known(culprit.serial)],
    ["Assigned to", incident.assignee ?? "no one"],
  ];
}

export function timeFacts({ incident, times }: PostMortem): [string, string][] {
  const by = incident.acknowledged_by ? ` by ${incident.acknowledged_by}` : "";
  return [
    ["Failed", moment(times.failed_at)],
    ["First finding", moment(times.first_finding_at)],
    ["Opened", moment(times.opened_at)],
    [
      "Acknowledged",
      times.acknowledged_at === null ? "not acknowledged" : moment(times.acknowledged_at) + by,
    ],
    ["Recovered", moment(times.recovered_at, "not recovered")],
    ["Closed", moment(times.closed_at, "not closed")],
  ];
}
