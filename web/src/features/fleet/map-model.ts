/** The cells and texts of the heatmap. */
import type { FleetDeviceFindings, FleetJobs, FleetLayout, HealthState, Severity, Signal } from "@/api/types";
import { groupByNode, type HeatNode } from "@/charts/heat-layout";
import { NO_DATA, type Pattern } from "@/charts/heat-paint";
import { namedValue } from "@/features/signals/named";
import { humanize, quantity, unitOf } from "@/lib/format";
import { health, healthOrder, severity } from "@/lib/status-styles";

export const FULL_SCALE = 250;

/** A device of the fleet; `slot` is the index of its byte in a snapshot. */
export interface Slot {
  slot: number;
  node: string;
  rack: string;
  /** The name of the group in which the map draws the node. */
  group: string;
  device: string;
  kind: "host" | "gpu";
}

type Columns = Pick<FleetLayout, "nodes" | "rack_of" | "racks" | "shape_of" | "shapes">;

/** How the map groups nodes, and what it calls the nodes of no group. */
export const mapGroups = {
  rack: { label: "Rack", none: "no rack" },
  switch: { label: "Switch", none: "no switch" },
  power: { label: "Power", none: "no power domain" },
  cohort: { label: "Cohort", none: "no cohort" },
  job: { label: "Job", none: "no job" },
} as const;
export type MapGroup = keyof typeof mapGroups;
export const mapZooms = ["1x", "2x", "4x"] as const;
export type MapZoom = (typeof mapZooms)[number];

/** Severities of findings that count against a node, the worst first. */
export const findingSeverities = ["critical", "warning"] as const;
/** What the legend can show alone. */
export const mapHighlights = [...healthOrder, ...findingSeverities];
export type MapHighlight = (typeof mapHighlights)[number];

/** The worst that is found about one device. */
export interface DeviceFinding {
  severity: Severity;
  kind: string;
}

/** The groups, and the index into them of each node of a layout. */
export interface Grouping {
  names: readonly string[];
  of: readonly number[];
}

/** The nodes of a layout by what they share; jobs are no part of the layout. */
export function groupingOf(layout: FleetLayout, by: MapGroup, jobs?: FleetJobs): Grouping {
  switch (by) {
    case "rack":
      return { names: layout.racks, of: layout.rack_of };
    case "switch":
      return { names: layout.switches, of: layout.switch_of };
    case "power":
      return { names: layout.power_domains, of: layout.power_domain_of };
    case "cohort":
      return { names: layout.cohorts, of: layout.cohort_of };
    case "job":
      return jobs?.layout === layout.version
        ? { names: jobs.jobs, of: jobs.job_of }
        : { names: [""], of: [] };
  }
}

/**
 * Expand the columns of a layout, group by group: the slots of a node are adjacent, one per device of its shape. The
 * bytes of a snapshot keep the order of the layout.
 */
export function slotsOf(
  layout: Columns,
  { names, of }: Grouping = { names: layout.racks, of: layout.rack_of },
): Slot[] {
  const byName = new Intl.Collator("en", { numeric: true });
  const order = names.map((_, group) => group);
  order.sort((a, b) => byName.compare(names[a] ?? "", names[b] ?? ""));
  const groups = names.map((): Slot[] => []);
  let slot = 0;
  layout.nodes.forEach((node, index) => {
    const rack = layout.racks[layout.rack_of[index] ?? 0] ?? "";
    const place = of[index] ?? 0;
    const group = names[place] ?? "";
    for (const device of layout.shapes[layout.shape_of[index] ?? -1] ?? []) {
      const kind = device === "host" ? "host" : "gpu";
      groups[place]?.push({ slot, node, rack, group, device, kind });
      slot += 1;
    }
  });
  return order.flatMap((group) => groups[group] ?? []);
}

export interface MapModel {
  slots: Slot[];
  /** Byte index of each drawn cell. */
  bytes: Uint32Array;
  nodes: HeatNode[];
}

/** For states, the GPUs of a node represent it, and the host only if it has no GPUs. */
function standIns(slots: readonly Slot[]): Slot[] {
  const withGpu = new Set(slots.filter((slot) => slot.kind === "gpu").map((slot) => slot.node));
  return slots.filter((slot) => slot.kind === "gpu" || !withGpu.has(slot.node));
}

/** Return the cells that can have the signal; a host, for example, has no GPU temperature. */
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
    nodes: groupByNode(
      shown.map((slot) => slot.node),
      (index) => shown[index]?.group ?? "",
    ),
  };
}

/** Return the findings by index of the drawn cell; none if they are of another version of the layout. */
export function findingsOf(
  model: MapModel,
  found: FleetDeviceFindings | null | undefined,
  layout: string | undefined,
): ReadonlyMap<number, DeviceFinding> {
  const cells = new Map<number, DeviceFinding>();
  if (!found?.slots.length || found.layout !== layout) return cells;
  const places = new Map(found.slots.map((slot, place) => [slot, place]));
  model.bytes.forEach((slot, cell) => {
    const place = places.get(slot) ?? -1;
    const level = found.severities[place];
    if (level) cells.set(cell, { severity: level, kind: found.kinds[place] ?? "" });
  });
  return cells;
}

export const findingText = (finding: DeviceFinding): string =>
  `${severity[finding.severity].label} finding: ${humanize(finding.kind)}`;

export const statePatterns: Record<HealthState, Pattern> = {
  healthy: "solid",
  suspect: "split",
  draining: "stripes",
  quarantined: "cross",
  validating: "dots",
  unknown: "diagonal",
};

export const stateOf = (byte: number): HealthState => healthOrder[byte] ?? "unknown";

/** Convert a byte to its value; null is no data. */
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
