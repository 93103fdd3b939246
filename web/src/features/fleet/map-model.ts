/** From layout and snapshot to what the map draws and says. Pure apart from the colours it is given. */
import type { HealthState, Signal, Slot } from "@/api/types";
import { groupByNode, type HeatNode } from "@/charts/heat-layout";
import { NO_DATA, type Pattern } from "@/charts/heat-paint";
import { namedValue } from "@/features/signals/named";
import { quantity, unitOf } from "@/lib/format";
import { health, healthOrder } from "@/lib/states";

export const FULL_SCALE = 250;

export interface MapModel {
  slots: Slot[];
  /** Byte index of each drawn cell. */
  bytes: Uint32Array;
  nodes: HeatNode[];
}

/**
 * For states a node's GPUs stand for it, and its host only where it has none: nine equal cells say no more than eight.
 * Ports are left out: a node has as many as its maker liked, and their state stands on its page.
 */
function standIns(slots: readonly Slot[]): Slot[] {
  const withGpu = new Set(slots.filter((slot) => slot.kind === "gpu").map((slot) => slot.node));
  return slots.filter((slot) => slot.kind === "gpu" || (slot.kind === "host" && !withGpu.has(slot.node)));
}

/** Only the slots that can have the signal: a GPU's temperature is not missing on a host, it does not exist there. */
export function mapModel(
  slots: readonly Slot[],
  source: Signal["source"] | "all",
  keep?: (node: string) => boolean,
): MapModel {
  const kind = source === "gpu" ? "gpu" : source === "host" ? "host" : null;
  const candidates = kind === null ? standIns(slots) : slots;
  const shown = candidates.filter(
    (slot) => (kind === null || slot.kind === kind) && (!keep || keep(slot.node)),
  );
  return {
    slots: shown,
    bytes: Uint32Array.from(shown, (slot) => slot.slot),
    nodes: groupByNode(shown.map((slot) => slot.node)),
  };
}

export const statePatterns: Record<HealthState, Pattern> = {
  healthy: "solid",
  suspect: "split",
  draining: "stripes",
  quarantined: "cross",
  validating: "dots",
  unknown: "hatch",
};

export const stateOf = (byte: number): HealthState => healthOrder[byte] ?? "unknown";

/** A byte back to its value; null is no data. */
export function byteValue(byte: number | undefined, low: number | null, high: number | null): number | null {
  if (byte === undefined || byte === NO_DATA || low === null || high === null) return null;
  return low + ((high - low) * Math.min(byte, FULL_SCALE)) / FULL_SCALE;
}

export function cellText(
  byte: number | undefined,
  signal: Signal | null,
  range: { low: number | null; high: number | null },
): string {
  if (signal === null)
    return byte === undefined || byte === NO_DATA ? health.unknown.label : health[stateOf(byte)].label;
  const value = byteValue(byte, range.low, range.high);
  return value === null
    ? "no data"
    : (namedValue(signal.name, value) ??
        quantity(value, unitOf(signal.name, signal.unit), signal.kind === "counter"));
}
