// The signal table as probes/signals.py declares it, with a plausible level for each.
import { HEALTH_SIGNALS, paceOf } from "./health-signals.mjs";
import { noise, wander } from "./random.mjs";

const host = (name, unit, about, level, spread, counter = false) => ({
  name,
  unit,
  about,
  source: "host",
  kind: counter ? "counter" : "gauge",
  level,
  spread,
});
const gpu = (name, unit, about, level, spread, counter = false) => ({
  name,
  unit,
  about,
  source: "gpu",
  kind: counter ? "counter" : "gauge",
  level,
  spread,
});

export const SIGNALS = [
  host("cpu_utilization_ratio", "1", "busy share of all cores since the last sample", 0.42, 0.3),
  host("cpu_steal_ratio", "1", "share of time the hypervisor ran someone else", 0.01, 0.02),
  host("load_1m", "1", "run-queue length, one-minute average", 60, 40),
  host("memory_used_bytes", "B", "memory not available to new work", 6.1e11, 2e11),
  host("memory_used_ratio", "1", "the same as a share of all memory", 0.29, 0.1),
  host("shm_used_ratio", "1", "fill of /dev/shm, where snapshots live", 0.18, 0.06),
  host("disk_used_ratio", "1", "fill of the root file system", 0.37, 0.02),
  host("processes_blocked", "1", "processes in uninterruptible sleep (state D)", 1, 3),
  host("disk_read_bytes_total", "B", "bytes read from block devices", 6e7, 1.2e8, true),
  host("disk_write_bytes_total", "B", "bytes written to block devices", 2.2e8, 3e8, true),
  host("network_receive_bytes_total", "B", "bytes received, loopback excluded", 4.2e9, 2e9, true),
  host("network_transmit_bytes_total", "B", "bytes sent, loopback excluded", 4.1e9, 2e9, true),
  host("network_errors_total", "1", "receive and transmit errors and drops", 0, 0.4, true),
  host("context_switches_total", "1", "context switches", 42000, 18000, true),
  gpu("gpu_utilization_ratio", "1", "share of time in which any kernel ran", 0.93, 0.12),
  gpu("gpu_memory_used_bytes", "B", "framebuffer in use", 7.1e10, 4e9),
  gpu("gpu_temperature_celsius", "C", "core temperature", 58, 14),
  gpu("gpu_memory_temperature_celsius", "C", "HBM temperature", 71, 14),
  gpu("gpu_power_watts", "W", "board power", 610, 120),
  gpu("gpu_sm_clock_hertz", "Hz", "SM clock", 1.83e9, 1.2e8),
  gpu("gpu_memory_clock_hertz", "Hz", "memory clock", 2.619e9, 1e6),
  gpu("gpu_throttle_reasons", "bitmask", "current clock event reasons", 0, 0),
  gpu("gpu_energy_millijoules_total", "mJ", "energy since driver load", 6e5, 1e5, true),
  gpu("gpu_ecc_corrected_total", "1", "corrected ECC errors, volatile", 0, 0.01, true),
  gpu("gpu_ecc_uncorrected_total", "1", "uncorrected ECC errors, volatile", 0, 0, true),
  gpu("gpu_pcie_replay_total", "1", "PCIe replays", 0, 0.2, true),
  ...HEALTH_SIGNALS,
];

export const publicSignals = SIGNALS.map(({ level: _l, spread: _s, at: _a, ...rest }) => rest);

export function valueAt(signal, node, device, t) {
  if (signal.at) return signal.at(node, device, t);
  const own = noise(signal.name, node, device) * 0.5 + 0.25;
  let value =
    signal.level +
    signal.spread *
      (own +
        wander(`${signal.name}${node}${device}`, t, 47) * 0.4 +
        noise(signal.name, node, device, Math.floor(t)) * 0.12 -
        0.5);
  if (
    signal.name === "gpu_temperature_celsius" &&
    node.endsWith("rack02-node4".slice(6)) &&
    device === "gpu3"
  )
    value += 14;
  if (/ecc_|network_errors/.test(signal.name))
    value = noise(signal.name, node, device, Math.floor(t / 30)) > 0.9993 ? 1 : 0;
  if (signal.name.endsWith("_ratio")) value = Math.min(1, value);
  return Math.max(0, value);
}

/** As the service answers a telemetry query: means with their extremes. */
export function telemetry(nodes, query, now) {
  const to = Number(query.get("to") ?? now);
  const from = Number(query.get("from") ?? to - 900);
  const points = Math.min(Number(query.get("points") ?? 300), Math.max(2, Math.floor(to - from)));
  const step = (to - from) / points;
  const t = Array.from({ length: points }, (_, i) => Math.round((from + (i + 0.5) * step) * 1000) / 1000);
  const wanted = query.getAll("signal");
  const series = [];
  for (const node of nodes.filter((n) => !query.get("node") || n.name === query.get("node"))) {
    for (const signal of SIGNALS.filter((s) => wanted.includes(s.name))) {
      for (const device of node.devices.filter((d) => d.kind === signal.source)) {
        series.push(seriesOf(signal, node, device, t, step, now));
      }
    }
  }
  return { t, series };
}

function seriesOf(signal, node, device, t, step, now) {
  const silent = (time) =>
    time > now || time > node.last_seen_at + 1 || (time > now - 420 && time < now - 405);
  const between = (time) => step < 5 && Math.floor(time) % paceOf(signal) !== 0;
  const mean = t.map((time) =>
    silent(time) || between(time) ? null : valueAt(signal, node.name, device.id, time),
  );
  const wide = step > 2 ? signal.spread * Math.min(0.25, step / 200) : 0;
  const edge = (sign) =>
    mean.map((v, i) => (v === null ? null : Math.max(0, v + sign * wide * noise(sign, i, signal.name))));
  const { name, unit, kind } = signal;
  return { node: node.name, device: device.id, signal: name, unit, kind, mean, low: edge(-1), high: edge(1) };
}

/** One byte a slot. */
export function snapshot(nodes, layout, signal, states, now) {
  const known = new Map(nodes.map((n) => [n.name, n]));
  const slots = layout.nodes.flatMap((node, index) =>
    layout.shapes[layout.shape_of[index]].map((device) => ({
      node,
      device,
      kind: device === "host" ? "host" : "gpu",
    })),
  );
  const bytes = Buffer.alloc(slots.length, 255);
  if (signal === "state") {
    slots.forEach((slot, i) => {
      bytes[i] = states.indexOf(known.get(slot.node).state);
    });
    return { bytes, low: "", high: "" };
  }
  const found = SIGNALS.find((s) => s.name === signal);
  const values = slots.map((slot) =>
    slot.kind === found?.source && known.get(slot.node).state !== "unknown"
      ? valueAt(found, slot.node, slot.device, now)
      : null,
  );
  const real = values.filter((v) => v !== null);
  const low = real.length ? real.reduce((a, b) => Math.min(a, b)) : 0;
  const high = Math.max(real.length ? real.reduce((a, b) => Math.max(a, b)) : 1, low + 1e-9);
  values.forEach((v, i) => {
    if (v !== null) bytes[i] = Math.round((250 * (v - low)) / (high - low));
  });
  return { bytes, low, high };
}
