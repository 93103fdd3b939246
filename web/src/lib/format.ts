/** Numbers as people read them. A missing number is an en dash, never a zero. */

export const MISSING = "–";

const SI = ["", "k", "M", "G", "T", "P"];
const IEC = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** Three figures unless asked for more: what a person compares, no more. */
function trim(value: number, figures: number): string {
  // Rounded first: 9.9999 is "10.0", not "10.00".
  const abs = Math.abs(Number(value.toPrecision(figures)));
  const whole = abs < 1 ? 1 : Math.floor(Math.log10(abs) + 1e-9) + 1;
  return value.toFixed(Math.max(0, figures - whole));
}

function scaled(value: number, step: number, units: readonly string[]): [number, string] {
  let v = value;
  let i = 0;
  while (Math.abs(v) >= step && i < units.length - 1) {
    v /= step;
    i += 1;
  }
  return [v, units[i] ?? ""];
}

export function bytes(value: number | null | undefined, figures = 3): string {
  if (value == null || !Number.isFinite(value)) return MISSING;
  const [v, unit] = scaled(value, 1024, IEC);
  return `${unit === "B" ? v.toFixed(0) : trim(v, figures)} ${unit}`;
}

export function integer(value: number | null | undefined): string {
  if (value == null || !Number.isFinite(value)) return MISSING;
  return Math.round(value).toLocaleString("en-GB").replaceAll(",", "\u202f");
}

export function percent(ratio: number | null | undefined, digits = 1): string {
  if (ratio == null || !Number.isFinite(ratio)) return MISSING;
  const text = (ratio * 100).toFixed(digits);
  return `${Number(text) === 0 || Number(text) === 100 ? Number(text) : text} %`;
}

/** A measured length of time: 840 µs, 12.4 ms, 1.62 s, 3 min 20 s, 2 h 5 min, 3 d 4 h. */
export function duration(seconds: number | null | undefined, figures = 3): string {
  if (seconds == null || !Number.isFinite(seconds)) return MISSING;
  const s = Math.abs(seconds);
  const sign = seconds < 0 ? "−" : "";
  if (s === 0) return "0 s";
  if (s < 1e-3) return `${sign}${trim(s * 1e6, figures)} µs`;
  if (s < 1) return `${sign}${trim(s * 1e3, figures)} ms`;
  if (s < 60) return `${sign}${trim(s, figures)} s`;
  return sign + coarse(s);
}

function coarse(s: number): string {
  const units: [number, string][] = [
    [86400, "d"],
    [3600, "h"],
    [60, "min"],
    [1, "s"],
  ];
  let at = units.findIndex(([size]) => s >= size);
  if (at < 0) at = units.length - 1;
  const [size, name] = units[at] as [number, string];
  const big = Math.floor(s / size);
  const next = units[at + 1];
  const rest = next ? Math.floor((s - big * size) / next[0]) : 0;
  return next && rest > 0 && big < 10 ? `${big} ${name} ${rest} ${next[1]}` : `${big} ${name}`;
}

/** How old something is, in the steps a person cares about. */
export function age(seconds: number | null | undefined): string {
  if (seconds == null || !Number.isFinite(seconds)) return "never";
  const s = Math.max(0, seconds);
  return s < 60 ? `${Math.floor(s)} s` : coarse(s);
}

/** A value with its unit as the signal table names it; `rate` for counters, which are drawn per second. */
export function quantity(value: number | null | undefined, unit: string, rate = false, figures = 3): string {
  if (value == null || !Number.isFinite(value)) return MISSING;
  return plain(value, unit, figures, rate) + (rate && unit !== "ns" ? "/s" : "");
}

function plain(value: number, unit: string, figures: number, rate: boolean): string {
  switch (unit) {
    case "B":
      return bytes(value, figures);
    case "s":
      return duration(value, figures);
    case "ns": // a counter of nanoseconds a second is a share of time
      return rate ? percent(value / 1e9) : duration(value / 1e9, figures);
    case "1/s":
      return `${plain(value, "1", figures, false)}/s`;
    case "state":
      return String(Math.round(value));
    case "C":
      return `${trim(value, figures)} °C`;
    case "bitmask":
      return `0x${Math.round(value).toString(16)}`;
    case "ratio":
      return percent(value, Math.max(0, figures - 2));
    case "": // a fingerprint or an index: a name, not an amount
      return Number.isInteger(value) ? String(value) : trim(value, figures);
    case "1": {
      const [v, prefix] = scaled(value, 1000, SI);
      return Number.isInteger(v) && prefix === "" ? `${v}` : `${trim(v, figures)}${prefix && ` ${prefix}`}`;
    }
    default: {
      const [v, prefix] = scaled(value, 1000, SI);
      return `${trim(v, figures)} ${prefix}${unit}`;
    }
  }
}

/** Labels of an axis: as short as they can be while no two of them read the same. */
export function tickLabels(values: readonly number[], unit: string, rate = false): string[] {
  for (let figures = 3; ; figures += 1) {
    const labels = values.map((v) => (v === 0 ? "0" : tidy(quantity(v, unit, rate, figures))));
    if (figures >= 7 || new Set(labels).size === values.length) return labels;
  }
}

/** "5.00 s" is "5 s" on an axis. */
const tidy = (label: string) => label.replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "");

/** Signals named `*_ratio` have unit 1 but are read as shares. */
export function unitOf(signal: string, unit: string): string {
  return unit === "1" && signal.endsWith("_ratio") ? "ratio" : unit;
}

/** A detector's number: its unit is in its name, as everywhere in the house. Noise and shares are parts of a whole. */
export function namedNumber(name: string, value: number | null | undefined): string {
  if (/_(seconds|s)$/.test(name)) return quantity(value, "s");
  if (/(^|_)bytes$/.test(name)) return quantity(value, "B");
  if (/(^|_)(share|noise|slowdown)$|_ratio$/.test(name)) return quantity(value, "ratio");
  // A process id or a step is a name, not an amount.
  return Number.isInteger(value) ? String(value) : quantity(value, "1");
}

const ACRONYMS: Record<string, string> = {
  cpu: "CPU",
  gpu: "GPU",
  sm: "SM",
  ecc: "ECC",
  pcie: "PCIe",
  shm: "Shared-memory",
  "1m": "1 min",
  nvlink: "NVLink",
  nic: "NIC",
  xid: "XID",
  sdc: "SDC",
  gc: "GC",
  nan: "NaN",
  comm: "communication",
  noncomm: "non-communication",
  gpus: "GPUs",
  nvlinks: "NVLinks",
  crc: "CRC",
  sram: "SRAM",
  dram: "DRAM",
  rnr: "RNR",
  oom: "OOM",
  sxid: "SXID",
  dcgm: "DCGM",
  uuid: "UUID",
  vbios: "VBIOS",
  pci: "PCI",
  mig: "MIG",
  numa: "NUMA",
};
const UNIT_SUFFIX =
  /_(bytes|ratio|celsius|watts|hertz|seconds|nanoseconds|millijoules|bits_per_second|per_second)(_total)?$|_total$/;

/** `gpu_memory_temperature_celsius` reads "GPU memory temperature"; the unit stands beside the number instead. */
export function signalLabel(name: string): string {
  return humanize(name.replace(UNIT_SUFFIX, ""));
}

/** An enum value or identifier as words: `parity_rebuild` → "Parity rebuild". */
export function humanize(name: string): string {
  const words = name.split(/[_\s]+/).map((word) => ACRONYMS[word] ?? word);
  const text = words.join(" ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** The first characters of an id, enough to tell rows apart; UUIDv7 differs at its end, so that end is shown. */
export function shortId(id: string): string {
  return id.length > 20 ? `…${id.slice(-8)}` : id;
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${integer(count)} ${count === 1 ? one : many}`;
}

const UUIDS = /\b(GPU|MIG)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{6}([0-9a-f]{6})\b/gi;

/** A sentence of the service with its UUIDs cut to their ends, unbroken: whole ones are for copying, not for reading. */
export const readable = (text: string) => text.replaceAll(UUIDS, "$1\u00a0…\u2060$2");

/** How ranks are laid out: `2 × 3`, or `3 + 2` stages where pipelines are of unlike depth. */
export function shapeOf(topology: { dp: number; pp: number; tp: number; stages?: number[] | null }): string {
  if (topology.stages) return topology.stages.join(" + ");
  return `${topology.dp} × ${topology.pp}${topology.tp > 1 ? ` × ${topology.tp}` : ""}`;
}
