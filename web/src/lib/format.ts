/** Formats of numbers. A missing number is an en dash, never a zero. */

export const MISSING = "–";

const SI = ["", "k", "M", "G", "T", "P"];
const IEC = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** Round to a number of digits. */
function trim(value: number, figures: number): string {
  // Round first: 9.9999 is "10.0", not "10.00".
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
  return `${Number(text) === 0 || Number(text) === 100 ? Number(text) : text}%`;
}

/** Format a measured time: 840 µs, 12.4 ms, 1.62 s, 3 min 20 s, 2 h 5 min, 3 d 4 h. */
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

/** Format an age in coarse steps. */
export function age(seconds: number | null | undefined): string {
  if (seconds == null || !Number.isFinite(seconds)) return "never";
  const s = Math.max(0, seconds);
  return s < 60 ? `${Math.floor(s)} s` : coarse(s);
}

/** Format a value with the unit of the signal table; `rate` for counters, which are shown per second. */
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
    case "ns": // nanoseconds per second are a ratio of time
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
    case "": // a fingerprint or an index, not a quantity
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

/** Return labels of an axis: as short as possible, but distinct. */
export function tickLabels(values: readonly number[], unit: string, rate = false): string[] {
  for (let figures = 3; ; figures += 1) {
    const labels = values.map((v) => (v === 0 ? "0" : tidy(quantity(v, unit, rate, figures))));
    if (figures >= 7 || new Set(labels).size === values.length) return labels;
  }
}

/** "5.00 s" is "5 s" on an axis. */
const tidy = (label: string) => label.replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "");

/** Return the unit of a signal; `*_ratio` signals have unit 1 and are shown in percent. */
export function unitOf(signal: string, unit: string): string {
  return unit === "1" && signal.endsWith("_ratio") ? "ratio" : unit;
}

/** Format a number of a detector by the unit in its name. */
export function namedNumber(name: string, value: number | null | undefined): string {
  if (/_(seconds|s)$/.test(name)) return quantity(value, "s");
  if (/(^|_)bytes$/.test(name)) return quantity(value, "B");
  if (/(^|_)(share|noise|slowdown)$|_ratio$/.test(name)) return quantity(value, "ratio");
  // A process ID or a step is a name, not a quantity.
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

/** Return the label of a signal: `gpu_memory_temperature_celsius` is "GPU memory temperature". */
export function signalLabel(name: string): string {
  return humanize(name.replace(UNIT_SUFFIX, ""));
}

/** Format an enum value or identifier: `parity_rebuild` is "Parity rebuild". */
export function humanize(name: string): string {
  const words = name.split(/[_\s]+/).map((word) => ACRONYMS[word] ?? word);
  const text = words.join(" ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** Shorten an ID to its end, where UUIDv7 values differ. */
export function shortId(id: string): string {
  return id.length > 20 ? `…${id.slice(-8)}` : id;
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${integer(count)} ${count === 1 ? one : many}`;
}

const UUIDS = /\b(GPU|MIG)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{6}([0-9a-f]{6})\b/gi;

/** Shorten the UUIDs in a sentence to their ends. */
export const readable = (text: string) => text.replaceAll(UUIDS, "$1\u00a0…\u2060$2");

/** Return the shape of a job: `2 × 3`, or `3 + 2` stages for pipelines of different depths. */
export function shapeOf(topology: { dp: number; pp: number; tp: number; stages?: number[] | null }): string {
  if (topology.stages) return topology.stages.join(" + ");
  return `${topology.dp} × ${topology.pp}${topology.tp > 1 ? ` × ${topology.tp}` : ""}`;
}
