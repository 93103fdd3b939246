/** The positions and columns of the history of the fleet. */
import type { FleetHistory, HealthState } from "@/api/types";
import { integer, plural } from "@/lib/format";
import { health, healthUrgency } from "@/lib/status-styles";

export const historyRanges = ["1h", "24h", "7d", "30d"] as const;
export type HistoryRange = (typeof historyRanges)[number];

const DAY = 86_400;
export const rangeSeconds: Record<HistoryRange, number> = {
  "1h": DAY / 24,
  "24h": DAY,
  "7d": 7 * DAY,
  "30d": 30 * DAY,
};

/** Return the end of a range that shows `at`: undefined for the present, else half a range after `at`. */
export function endFor(at: number | undefined, range: HistoryRange, now: number): number | undefined {
  if (at === undefined || at >= now - rangeSeconds[range]) return undefined;
  return Math.min(now, at + rangeSeconds[range] / 2);
}

/** Return the bucket that holds a time; times outside are in the first or last one. */
export function bucketOf(history: FleetHistory, at: number): number {
  const found = history.times.findIndex((end) => end >= at);
  return found < 0 ? history.times.length - 1 : found;
}

const count = (history: FleetHistory, state: HealthState, bucket: number) =>
  history.states[state]?.[bucket] ?? 0;

/** Return the states, incidents, and numbers of a bucket in words. */
export function bucketText(history: FleetHistory, bucket: number): string {
  const parts = healthUrgency
    .filter((state) => count(history, state, bucket) > 0)
    .map((state) => `${integer(count(history, state, bucket))} ${health[state].label.toLowerCase()}`);
  const incidents = history.incidents[bucket] ?? 0;
  if (parts.length === 0) parts.push("no data");
  if (incidents > 0) parts.push(`${plural(incidents, "incident")} opened`);
  return parts.join(", ");
}

/** The least height of a state with nodes: 3 nodes of 10,000 must be visible. */
const LEAST = 0.1;

/** Return an SVG path of each state in a box of width `buckets` and height 1, the most urgent state on top. */
export function statePaths(history: FleetHistory): { state: HealthState; path: string }[] {
  const paths = new Map<HealthState, string>(healthUrgency.map((state) => [state, ""]));
  history.times.forEach((_, bucket) => {
    const counts = healthUrgency.map((state) => ({ state, nodes: count(history, state, bucket) }));
    const nodes = counts.reduce((sum, each) => sum + each.nodes, 0);
    const shares = counts
      .filter((each) => each.nodes > 0)
      .map(({ state, nodes: some }) => ({ state, share: Math.max(LEAST, some / nodes) }));
    const whole = shares.reduce((sum, { share }) => sum + share, 0);
    let top = 0;
    for (const { state, share } of shares) {
      const height = share / whole;
      paths.set(state, `${paths.get(state)}M${bucket} ${top.toFixed(4)}h1v${height.toFixed(4)}h-1z`);
      top += height;
    }
  });
  return healthUrgency.map((state) => ({ state, path: paths.get(state) ?? "" }));
}
