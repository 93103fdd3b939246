/** The charts of a node, and its telemetry as chart columns. */

import type { FleetEvent, Node, Signal, Telemetry } from "@/api/types";
import { bridged } from "@/charts/bridge";
import type { ChartSpec, Line } from "@/charts/chart-options";
import { type FamilyId, type FamilySignals, inFamilies } from "@/features/signals/families";
import { signalLabel, unitOf } from "@/lib/format";

/** Signals that are constant or unreadable as a line; the API still provides them. */
const NOT_CHARTED = new Set([
  "memory_used_bytes",
  "gpu_throttle_reasons",
  "gpu_energy_millijoules_total",
  "gpu_fabric_health_mask",
  "uptime_seconds",
]);

/** Return the families of charts that match the devices of the node. */
export function chartFamilies(signals: readonly Signal[], devices: Node["devices"]): FamilySignals[] {
  const kinds = new Set(["host", ...devices.map((device) => device.kind)]);
  return inFamilies(signals.filter((s) => kinds.has(s.source) && !NOT_CHARTED.has(s.name)));
}

/** The families that are open unless the URL lists others. */
export function openFamilies(wanted: string | undefined, present: readonly FamilySignals[]): Set<FamilyId> {
  const ids = present.map((family) => family.id);
  if (wanted !== undefined) return new Set(ids.filter((id) => wanted.split(",").includes(id)));
  const first: FamilyId[] = ids.includes("heat") ? ["load", "heat", "throttle"] : ["host"];
  return new Set(ids.filter((id) => first.includes(id)));
}

/** Return the URL parameter after opening or closing a family; "none" if all are closed. */
export function toggledFamilies(open: ReadonlySet<FamilyId>, id: FamilyId): string {
  const next = open.has(id) ? [...open].filter((other) => other !== id) : [...open, id];
  return next.length === 0 ? "none" : next.join(",");
}

/** Return the number of points: enough for the pixels, at most one per second. */
export function pointsFor(spanSeconds: number): number {
  return Math.min(300, Math.max(30, Math.round(spanSeconds)));
}

/** Return the interval between two reads of a live chart in milliseconds: a point of a long span changes slowly. */
export function refreshInterval(spanSeconds: number): number {
  return Math.min(60_000, Math.max(4_000, (spanSeconds / pointsFor(spanSeconds)) * 1000));
}

const same = (a: readonly (number | null)[], b: readonly (number | null)[]) => a.every((v, i) => v === b[i]);

export function linesFor(
  telemetry: Telemetry | undefined,
  signal: string,
  device?: string,
  name: (id: string) => string = (id) => id,
): Line[] {
  return (telemetry?.series ?? [])
    .filter((series) => series.signal === signal && (!device || series.device === device))
    .sort((a, b) => name(a.device).localeCompare(name(b.device), "en", { numeric: true }))
    .map((series) => {
      // With one sample per point there is no envelope.
      const enveloped = !(same(series.low, series.mean) && same(series.high, series.mean));
      return {
        label: name(series.device),
        values: bridged(series.mean),
        ...(enveloped ? { low: bridged(series.low), high: bridged(series.high) } : {}),
      };
    });
}

export const hasData = (lines: readonly Line[]) => lines.some((line) => line.values.some((v) => v !== null));

export function rangeFor(signal: Signal): ChartSpec["range"] {
  if (signal.name.endsWith("_ratio")) return [0, 1];
  return signal.unit === "ns" && signal.kind === "counter" ? [0, 1e9] : undefined;
}

export const specBasics = (signal: Signal) => ({
  title: signalLabel(signal.name),
  unit: unitOf(signal.name, signal.unit),
  rate: signal.kind === "counter",
  range: rangeFor(signal),
});

const MARKED: Partial<Record<FleetEvent["kind"], string>> = {
  process_exit: "quarantined",
  node_lost: "quarantined",
  recovery_failed: "quarantined",
  xid: "quarantined",
  sxid: "quarantined",
  gpu_lost: "quarantined",
  kernel_fault: "quarantined",
  health_report: "suspect",
  link_down: "suspect",
  probe_unresponsive: "suspect",
  node_stopping: "unknown",
  node_started: "validating",
  node_rebooted: "suspect",
  link_up: "healthy",
  recovery_completed: "healthy",
};

export function eventMarks(events: readonly FleetEvent[] | undefined) {
  return (events ?? []).flatMap((event) => {
    const tone = MARKED[event.kind];
    if (!tone || event.data.expected === true) return [];
    return [{ x: event.time, tone, label: event.kind }];
  });
}
