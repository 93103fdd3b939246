// Nodes, devices and their states, per scenario.
import { noise } from "./random.mjs";

const GPU = "NVIDIA H100 80GB HBM3";
export const STATES = ["unknown", "healthy", "suspect", "draining", "quarantined", "validating"];

const sizes = { busy: 24, calm: 2, empty: 0, big: 5000 };
const gpusOf = { busy: 8, calm: 0, big: 8 };

function stateOf(scenario, index) {
  if (scenario === "calm") return "healthy";
  if (scenario === "busy") {
    return (
      { 5: "quarantined", 11: "suspect", 17: "draining", 20: "validating", 22: "unknown" }[index] ?? "healthy"
    );
  }
  const n = noise("state", index);
  if (index >= 1200 && index < 1216) return "unknown"; // a rack's switch: a visible shape
  return n < 0.002
    ? "quarantined"
    : n < 0.006
      ? "suspect"
      : n < 0.008
        ? "draining"
        : n < 0.01
          ? "validating"
          : "healthy";
}

const reasons = {
  healthy: "reports on time",
  suspect: "GPU 3 runs 14 °C above its cohort",
  draining: "asked by operator: firmware",
  quarantined: "XID 79 on gpu6; lifts when suite deep passes",
  validating: "suite standard is running",
  unknown: "no report for 4 min",
};

function devicesOf(name, gpus, index) {
  const host = {
    id: "host",
    node: name,
    index: 0,
    kind: "host",
    model: "AMD EPYC 9654",
    serial: null,
    uuid: null,
    memory_bytes: null,
    facts: {},
    previous_node: null,
    present: true,
  };
  const list = Array.from({ length: gpus }, (_, g) => ({
    id: `gpu${g}`,
    node: name,
    index: g,
    kind: "gpu",
    model: GPU,
    serial: String(1652000000000 + index * 16 + g),
    uuid: `GPU-${index.toString(16).padStart(8, "0")}-${g}`,
    memory_bytes: 85_899_345_920,
    facts: {
      driver_version: "580.95.05",
      vbios_version: "96.00.9F.00.01",
      pci_bus_id: `00000000:${(0x18 + g * 0x10).toString(16).toUpperCase()}:00.0`,
      board_part_number: "692-2G520-0200-000",
      numa_node: String(g >> 2),
    },
    previous_node: index === 11 && g === 3 ? "rack01-node3" : null,
    present: true,
  }));
  return [host, ...list, ...portsOf(name, gpus ? 4 : 0, index)];
}

function portsOf(name, count, index) {
  return Array.from({ length: count }, (_, p) => ({
    id: `nic:mlx5_${p}:1`,
    node: name,
    index: p,
    kind: "nic",
    model: "ConnectX-7",
    serial: null,
    uuid: null,
    memory_bytes: null,
    facts: {
      firmware: "28.43.1014",
      node_guid: `b8:3f:d2:03:00:${index.toString(16).padStart(2, "0")}:00:0${p}`,
      link_layer: "InfiniBand",
      rate: "400 Gb/s",
    },
    previous_node: null,
    present: true,
  }));
}

export function makeNodes(scenario, now) {
  const gpus = gpusOf[scenario] ?? 0;
  return Array.from({ length: sizes[scenario] }, (_, i) => {
    const name =
      scenario === "calm"
        ? `demo-${i}`
        : `rack${String(Math.floor(i / 8) + 1).padStart(2, "0")}-node${(i % 8) + 1}`;
    const state = stateOf(scenario, i);
    const seen = state === "unknown" ? now - 240 : now - 1 - noise("seen", i) * 1.4;
    const validated = i % 3 !== 1;
    return {
      name,
      state,
      state_reason: reasons[state],
      rack: scenario === "calm" ? "" : name.slice(0, 6),
      booted_at: now - 86400 * (2 + (i % 9)),
      started_at: now - 86400 * (1 + (i % 9)),
      owner: { 17: "external", 20: "operator" }[i] ?? "system",
      actor: { 5: "remediation", 17: "slurm", 20: "operator" }[i] ?? "detector",
      state_since: now - 600 - i * 731,
      state_version: 3 + (i % 5),
      hostname: name,
      os: "Debian GNU/Linux 13",
      kernel: "6.12.48-amd64",
      version: "0.1.0",
      boot_id: "3f0d7c5e-9a41-4a4b-8d1e-5b7f1f6a2c90",
      cohort: gpus ? "h100-sxm5/fw-96.00.9f/air" : "cpu/epyc-9654",
      cpu_count: gpus ? 192 : 2,
      memory_bytes: gpus ? 2_164_663_517_184 : 8_350_000_000,
      devices: devicesOf(name, gpus, i),
      last_seen_at: seen,
      first_seen_at: now - 86400 * 12 - i * 900,
      age_seconds: now - seen,
      jobs:
        scenario === "calm"
          ? ["demo"]
          : i < 8 && scenario === "busy"
            ? ["llama-70b-pretrain"]
            : i < 12 && scenario === "busy"
              ? ["ablation-17"]
              : [],
      open_incidents: state === "quarantined" || state === "suspect" ? 1 : 0,
      last_verdict: !validated
        ? null
        : state === "quarantined"
          ? "fail"
          : state === "suspect"
            ? "warn"
            : i % 7 === 0
              ? "unknown"
              : "pass",
      last_validation_at: validated ? now - 3600 * (1 + (i % 20)) : null,
    };
  });
}

export function makeLayout(nodes) {
  const shapes = nodes.map(({ devices }) =>
    devices.filter((device) => device.kind !== "nic").map((device) => device.id),
  );
  const racks = [...new Set(nodes.map((node) => node.rack))];
  return {
    version: `mock-${nodes.length}`,
    nodes: nodes.map((node) => node.name),
    rack_of: nodes.map((node) => racks.indexOf(node.rack)),
    shape_of: nodes.map((_, index) => index),
    racks,
    shapes,
  };
}

const URGENCY = ["quarantined", "suspect", "unknown", "draining", "validating", "healthy"];
const sortKeys = {
  state: (node) => URGENCY.indexOf(node.state),
  last_seen: (node) => node.last_seen_at ?? 0,
  incidents: (node) => node.open_incidents,
};
const facetKeys = {
  state: (node) => [node.state],
  rack: (node) => [node.rack],
  cohort: (node) => [node.cohort],
  job: (node) => node.jobs,
};

function counted(nodes, key) {
  const counts = new Map();
  for (const value of nodes.flatMap(key)) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts].filter(([value]) => value).map(([value, count]) => ({ value, count }));
}

/** What a list of nodes shows, in order, and its counts. */
export function listNodes(nodes, query) {
  const text = (query.get("q") ?? "").toLowerCase();
  const meets = (node, without) =>
    [node.name, node.hostname, node.rack, node.cohort].join("\n").toLowerCase().includes(text) &&
    Object.entries(facetKeys).every(
      ([name, key]) => name === without || !query.get(name) || key(node).includes(query.get(name)),
    );
  const found = nodes.filter((node) => meets(node));
  const sort = query.get("sort") ?? "name";
  const column = sort.replace(/^-/, "");
  const key = sortKeys[column] ?? ((node) => node[column]);
  const less = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  found.sort((a, b) => (less(key(a), key(b)) || less(a.name, b.name)) * (sort === column ? 1 : -1));
  const wanted = query.get("facets") === "true";
  const filtered = text || Object.keys(facetKeys).some((name) => query.get(name));
  const facets = Object.entries(facetKeys).map(([name, key]) => [
    name,
    counted(
      nodes.filter((node) => meets(node, name)),
      key,
    ),
  ]);
  return {
    found,
    rest: {
      total: found.length,
      facets: wanted ? Object.fromEntries(facets) : null,
      names: wanted && filtered ? found.map((node) => node.name) : null,
    },
  };
}
