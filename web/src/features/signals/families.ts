/** Families of signals, for the charts of a node and the signals of the heatmap. */
import type { Signal } from "@/api/types";
import { signalLabel } from "@/lib/format";

export const familyIds = [
  "load",
  "heat",
  "throttle",
  "memory",
  "pcie",
  "nvlink",
  "driver",
  "host",
  "host_faults",
  "port_traffic",
  "port_errors",
] as const;
export type FamilyId = (typeof familyIds)[number];

interface Family {
  label: string;
  source: string;
  about: string;
  /** A signal belongs to the first family of its source with a matching pattern. */
  pattern: RegExp;
}

export const families: Record<FamilyId, Family> = {
  throttle: {
    label: "Throttling",
    source: "gpu",
    about: "ratio of time with reduced clocks, by cause",
    pattern: /throttle/,
  },
  heat: {
    label: "Heat, power and clocks",
    source: "gpu",
    about: "temperatures, board power, clocks",
    pattern: /temperature|power|clock|energy/,
  },
  memory: {
    label: "Memory errors",
    source: "gpu",
    about: "ECC, remapped rows, SRAM threshold",
    pattern: /ecc|remap|sram/,
  },
  pcie: { label: "PCIe", source: "gpu", about: "link generation, width, errors, traffic", pattern: /pcie/ },
  nvlink: {
    label: "NVLink and fabric",
    source: "gpu",
    about: "links up, worst link, fabric state",
    pattern: /nvlink|fabric/,
  },
  driver: {
    label: "Driver recommendation",
    source: "gpu",
    about: "the recovery action that the driver recommends",
    pattern: /recovery_action/,
  },
  load: { label: "Load", source: "gpu", about: "utilization, memory, processes", pattern: /./ },
  host_faults: {
    label: "Host faults",
    source: "host",
    about: "stuck processes, read-only file systems, clock, host memory",
    pattern: /errors|stuck|blocked|read_only|inodes|clock|fabric|oom|dram|uptime/,
  },
  host: { label: "Host", source: "host", about: "processor, memory, disk, network", pattern: /./ },
  port_errors: {
    label: "Port errors",
    source: "nic",
    about: "link errors, retries, congestion",
    pattern: /error|recover|downed|discard|overrun|timeout|sequence|retries|restart|wait/,
  },
  port_traffic: { label: "Ports", source: "nic", about: "link state, rate, traffic", pattern: /./ },
};

const judged = Object.entries(families) as [FamilyId, Family][];

export function familyOf(signal: Pick<Signal, "name" | "source">): FamilyId | null {
  return (
    judged.find(([, family]) => family.source === signal.source && family.pattern.test(signal.name))?.[0] ??
    null
  );
}

export interface FamilySignals {
  id: FamilyId;
  signals: Signal[];
}

/** Return the families with any of the signals, in order. */
export function inFamilies(signals: readonly Signal[]): FamilySignals[] {
  return familyIds
    .map((id) => ({ id, signals: signals.filter((signal) => familyOf(signal) === id) }))
    .filter((family) => family.signals.length > 0);
}

/** Return the title of a signal, with its unit if another signal has the same label. */
export function signalTitle(signal: Signal, all: readonly Signal[]): string {
  const label = signalLabel(signal.name);
  const twins = all.filter((other) => signalLabel(other.name) === label);
  if (twins.length < 2) return label;
  return `${label}, ${signal.name.endsWith("_ratio") ? "ratio" : signal.unit}`;
}
