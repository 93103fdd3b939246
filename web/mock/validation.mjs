// Suites, results with their criteria, sweeps.
import { noise, uuid } from "./random.mjs";

const metric = (name, unit, better) => ({ name, unit, better });
const BENCH = [
  [
    "gemm",
    [
      metric("fp32_flops", "FLOP/s", "higher"),
      metric("bf16_flops", "FLOP/s", "higher"),
      metric("fp16_flops", "FLOP/s", "higher"),
    ],
  ],
  ["memory", [metric("copy_bandwidth", "B/s", "higher"), metric("triad_bandwidth", "B/s", "higher")]],
  ["copy", [metric("host_to_device", "B/s", "higher"), metric("device_to_host", "B/s", "higher")]],
  ["launch", [metric("latency_seconds", "s", "lower")]],
  ["allreduce", [metric("bus_bandwidth", "B/s", "higher")]],
  ["disk", [metric("write_bandwidth", "B/s", "higher"), metric("read_bandwidth", "B/s", "higher")]],
  ["deterministic", [metric("digest_equal", "1", "equal")]],
];
const COHORT = "h100-sxm5/fw-96.00.9f/air";
/** What validations and sweeps have beside what a scenario says of them. */
const VALIDATION = {
  benchmarks: null,
  run: null,
  held: false,
  attempt: 1,
  progress: null,
  cancelled_at: null,
};
const SWEEP = {
  cohort: null,
  benchmarks: null,
  max_concurrent: null,
  max_per_switch: null,
  retries: 0,
  timeout_seconds: null,
};
const LEVEL = {
  fp32_flops: 5.1e13,
  bf16_flops: 7.2e14,
  fp16_flops: 7.1e14,
  copy_bandwidth: 2.6e12,
  triad_bandwidth: 2.5e12,
  host_to_device: 5.4e10,
  device_to_host: 5.2e10,
  latency_seconds: 4.1e-6,
  bus_bandwidth: 3.7e11,
  write_bandwidth: 2.9e9,
  read_bandwidth: 5.8e9,
  digest_equal: 1,
};

export const suites = ["quick", "standard", "deep"].map((name, i) => ({
  name,
  expected_seconds: [48, 420, 3600][i],
  benchmarks: BENCH.map(([b, metrics]) => ({
    name: b,
    metrics,
    catches: "",
    defects: [],
    expected_seconds: [48, 420, 3600][i] / BENCH.length,
  })),
}));

function results(node, kind, hasCriteria) {
  return BENCH.flatMap(([benchmark, metrics]) =>
    metrics.map((m) => {
      const level = LEVEL[m.name];
      const bad = kind === "fail" && m.name === "bus_bandwidth";
      const near = kind === "warn" && m.name === "copy_bandwidth";
      const missing = kind === "unknown" && benchmark === "copy";
      const value = missing
        ? null
        : m.better === "equal"
          ? 1
          : level * (1 + (noise(node, m.name) - 0.5) * 0.02) * (bad ? 0.71 : near ? 0.955 : 1);
      const verdict = missing || !hasCriteria ? "unknown" : bad ? "fail" : near ? "warn" : "pass";
      const criterion = !hasCriteria
        ? null
        : m.better === "higher"
          ? { low: level * 0.95, high: null, source: "learned", n: 214 }
          : m.better === "lower"
            ? { low: null, high: level * 1.08, source: "learned", n: 214 }
            : { low: 1, high: 1, source: "stated", n: 1 };
      const reason = !hasCriteria
        ? "No criterion exists for this metric in cohort cpu/epyc-9654; learn one from at least 5 runs."
        : missing
          ? "The benchmark timed out after 60 s and left no value."
          : bad
            ? "29 % under the cohort's lower limit."
            : near
              ? "Inside, but within 1 % of the lower limit."
              : "Inside the criterion.";
      return {
        cohort: COHORT,
        benchmark,
        device: "host",
        metric: m.name,
        unit: m.unit,
        value,
        verdict,
        criterion,
        reason,
      };
    }),
  );
}

const why = {
  pass: "All 13 metrics are inside their criteria.",
  warn: "copy_bandwidth is within 1 % of its limit.",
  fail: "bus_bandwidth of allreduce is 29 % under its limit: check the NVLink bridge.",
  unknown: "Benchmark copy timed out, so 2 of 13 metrics are unknown. All others are inside their criteria.",
};

export function makeValidations(scenario, nodes, now) {
  const list = nodes
    .filter((node) => node.last_verdict !== null)
    .slice(0, 60)
    .map((node, i) => {
      const learned = scenario !== "calm";
      const verdict = learned ? node.last_verdict : "unknown";
      const at = node.last_validation_at;
      return {
        id: uuid(at, node.name),
        node: node.name,
        suite: i % 4 === 0 ? "standard" : "quick",
        sweep: i % 2 ? "sweep-nightly" : null,
        state: "done",
        verdict,
        reason: learned
          ? why[verdict]
          : "No criteria exist for cohort cpu/epyc-9654 yet, so all metrics are unknown.",
        created_at: at - 60,
        started_at: at - 49,
        finished_at: at,
        results: results(node.name, verdict, learned),
      };
    });
  if (nodes.length > 20) {
    list.push({
      id: uuid(now - 30, "q"),
      node: nodes[20].name,
      suite: "standard",
      sweep: null,
      state: "running",
      verdict: "unknown",
      reason: "The node is running the benchmarks.",
      created_at: now - 42,
      started_at: now - 30,
      finished_at: null,
      results: [],
    });
    list.push({
      id: uuid(now - 5000, "x"),
      node: nodes[22].name,
      suite: "quick",
      sweep: "sweep-nightly",
      state: "expired",
      verdict: "unknown",
      reason: "The node did not fetch the task within 10 min.",
      created_at: now - 5000,
      started_at: null,
      finished_at: now - 4400,
      results: [],
    });
  }
  return list.map((v) => ({ ...VALIDATION, ...v })).sort((a, b) => b.created_at - a.created_at);
}

export function makeSweeps(scenario, now) {
  if (scenario === "empty") return [];
  const run = (i, counts) => ({
    id: `run-${i}`,
    started_at: now - 86400 * i - 3600 * 5,
    finished_at: now - 86400 * i - 3600 * 4.6,
    counts,
  });
  return [
    {
      ...SWEEP,
      id: "sweep-nightly",
      name: "nightly",
      suite: "quick",
      schedule: "0 3 * * *",
      nodes: null,
      enabled: true,
      created_at: now - 86400 * 20,
      next_run_at: now + 3600 * 6.2,
      last_run_at: now - 3600 * 5,
      runs: [
        run(0, { pass: 18, warn: 1, fail: 1, unknown: 3, pending: 1 }),
        run(1, { pass: 22, warn: 0, fail: 1, unknown: 1, pending: 0 }),
      ],
    },
    {
      ...SWEEP,
      id: "sweep-deep",
      name: "weekend deep check",
      suite: "deep",
      schedule: "0 1 * * 6",
      nodes: ["rack01-node1", "rack01-node2"],
      enabled: true,
      created_at: now - 86400 * 20,
      next_run_at: now + 86400 * 2.3,
      last_run_at: null,
      runs: [],
    },
  ];
}

export function makeCriteria(scenario, now) {
  if (scenario !== "busy" && scenario !== "big") return [];
  return BENCH.flatMap(([benchmark, metrics]) =>
    metrics.map((m) => ({
      benchmark,
      metric: m.name,
      cohort: COHORT,
      better: m.better,
      low: m.better === "lower" ? null : LEVEL[m.name] * (m.better === "equal" ? 1 : 0.95),
      high: m.better === "higher" ? null : LEVEL[m.name] * (m.better === "equal" ? 1 : 1.08),
      n: 214,
      source: m.better === "equal" ? "stated" : "learned",
      learned_at: now - 86400 * 3,
      unit: m.unit,
      warn: null,
      center: LEVEL[m.name],
      allowed: [],
    })),
  );
}
