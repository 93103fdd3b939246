/** Silences in words. */
import type { Silence } from "@/api/types";
import { names } from "@/features/validation/sweep-form";

export const conditionNames = [
  "nodes",
  "racks",
  "switches",
  "cohorts",
  "jobs",
  "kinds",
  "detectors",
] as const;
export type ConditionName = (typeof conditionNames)[number];

/** What a silence covers, as short phrases. */
export function conditionsOf(silence: Pick<Silence, ConditionName>): string[] {
  return conditionNames
    .filter((name) => silence[name].length > 0)
    .map((name) => `${name} ${silence[name].join(", ")}`);
}

/** The conditions beside those that select nodes. */
export const limitsOf = (silence: Silence) =>
  conditionsOf({ ...silence, nodes: [], racks: [], switches: [], cohorts: [] });

/** Whether it ends within a quarter of an hour. */
export const endsSoon = (silence: Silence, now: number) =>
  silence.state === "active" && silence.ends_at - now < 900;

export type Draft = Record<ConditionName, string> & { hours: string; timezone: string; length: string };

export const emptyDraft: Draft = {
  nodes: "",
  racks: "",
  switches: "",
  cohorts: "",
  jobs: "",
  kinds: "",
  detectors: "",
  hours: "",
  timezone: "UTC",
  length: "2",
};

/** The body of a request without the reason; null while it has no condition or no length. */
export function bodyOf(draft: Draft, now: number) {
  const hours = Number(draft.length);
  const conditions = Object.fromEntries(conditionNames.map((name) => [name, names(draft[name])]));
  const chosen = conditionNames.some((name) => names(draft[name]).length > 0);
  if (!chosen || !(hours > 0)) return null;
  return {
    ...(conditions as Record<ConditionName, string[]>),
    ends_at: now + hours * 3600,
    hours: draft.hours.trim() || null,
    timezone: draft.timezone.trim() || "UTC",
  };
}
