/** Which charts a node has, and its telemetry as chart columns. Pure. */

import type { FleetEvent, Signal, Telemetry } from "@/api/types";
import type { ChartSpec, Line } from "@/charts/chart-options";
import { signalLabel, unitOf } from "@/lib/format";

/** Constant by nature or unreadable as a line; they stay available through the API. */
const NOT_CHARTED = new Set(["memory_used_bytes", "gpu_throttle_reasons", "gpu_energy_millijoules_total"]);

export function chartedSignals(signals: readonly Signal[], hasGpu: boolean): Signal[] {
  const wanted = hasGpu ? ["gpu", "host"] : ["host"];
  return wanted.flatMap((source) => signals.filter((s) => s.source === source && !NOT_CHARTED.has(s.name)));
}

/** Points enough for the pixels, and no more samples than the span has seconds. */
export function pointsFor(spanSeconds: number): number {
  return Math.min(300, Math.max(30, Math.round(spanSeconds)));
}

const same = (a: readonly (number | null)[], b: readonly (number | null)[]) => a.every((v, i) => v === b[i]);

export function linesFor(telemetry: Telemetry | undefined, signal: string, device?: string): Line[] {
  return (telemetry?.series ?? [])
    .filter((series) => series.signal === signal && (!device || series.device === device))
    .map((series) => {
      // Where every point is one sample there is no envelope to draw.
      const enveloped = !(same(series.low, series.mean) && same(series.high, series.mean));
      return {
        label: series.device,
        values: series.mean,
        ...(enveloped ? { low: series.low, high: series.high } : {}),
      };
    });
}

export const hasData = (lines: readonly Line[]) => lines.some((line) => line.values.some((v) => v !== null));

export function rangeFor(signal: Signal): ChartSpec["range"] {
  return signal.name.endsWith("_ratio") ? [0, 1] : undefined;
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
  link_down: "suspect",
  probe_silent: "suspect",
  recovered: "healthy",
};

export function eventMarks(events: readonly FleetEvent[] | undefined) {
  return (events ?? []).flatMap((event) => {
    const tone = MARKED[event.kind];
    if (!tone || event.data.expected === true) return [];
    return [{ x: event.time, tone, label: event.kind }];
  });
}
