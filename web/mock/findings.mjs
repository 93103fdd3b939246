// What detectors say: a killed rank, and a node that runs hot with nobody allowed to act on it.
import { noise, uuid } from "./random.mjs";

export function hotIncident(node, opened, now) {
  const id = uuid(opened, "hot");
  const x = Array.from({ length: 180 }, (_, i) => now - 900 + i * 5);
  const y = x.map((t, i) => 61 + 14 / (1 + Math.exp(-(t - opened + 30) / 18)) + noise("hot", i) * 1.6);
  const peers = x.map((_, i) => 60.5 + noise("peer", i) * 0.8);
  return {
    id,
    title: `GPU 3 of ${node} runs hot against its cohort`,
    state: "open",
    severity: "warning",
    opened_at: opened,
    recovering_at: null,
    recovered_at: null,
    verified_at: null,
    closed_at: null,
    job: "ablation-17",
    node,
    device: "gpu3",
    ranks: [6],
    kinds: ["signal_outlier", "straggler"],
    cause: "gpu_thermal",
    needs_operator: true,
    summary:
      "75 °C while 191 peers run at 61 °C; its rank computes 1.24 × slower than its role peers. No automatic action is enabled for heat.",
    timeline: [
      [-25, "suspect", "Robust z rose above 3.5; hysteresis waits for 20 s of it"],
      [0, "opened", "Incident opened: signal outlier held for 20 s"],
      [0.01, "finding", "Outlier detector: temperature z = 9.8 within cohort h100-sxm5/fw-96.00.9f/air"],
      [41, "finding", "Straggler detector: rank 6 at 1.24 × its role peers, CUSUM 11.2 over 8"],
      [60, "acknowledged", "Acknowledged by operator: fan tray ordered, watching until it arrives"],
    ].map(([t, kind, text]) => ({
      time: opened + t,
      kind,
      text,
      data: kind === "finding" ? { confidence: 0.98 } : {},
    })),
    findings_total: 1,
    findings: [
      {
        id: uuid(opened, "f1"),
        kind: "signal_outlier",
        entity: { node, device: "gpu3", job: null, rank: null, peer: null },
        time: opened,
        severity: "warning",
        detector: "outlier",
        confidence: 0.98,
        evidence: {
          summary: "Robust z of the core temperature within its cohort is 9.8, over 3.5 for 20 s.",
          numbers: { robust_z: 9.8, cohort_size: 192 },
          series: [
            { name: "gpu_temperature_celsius", unit: "C", x, y, x_is: "time", threshold: 68.4, peers },
          ],
        },
        active: true,
        recommended_action: "inspect_node",
        cause: "gpu_thermal",
        event: null,
        incident: id,
        cleared_at: null,
      },
      {
        id: uuid(opened, "f2"),
        kind: "straggler",
        entity: { node, device: null, job: "ablation-17", rank: 6, peer: null },
        time: opened + 41,
        severity: "warning",
        detector: "straggler",
        confidence: 0.95,
        evidence: {
          summary: "Compute time is 1.24 × the median of the same stage's ranks.",
          numbers: { ratio: 1.24, cusum: 11.2 },
          series: [
            {
              name: "compute_time_seconds",
              unit: "s",
              x: x.map((_, i) => 10700 + i),
              y: x.map((_, i) => 3.5 + (i > 60 ? 0.85 : 0) + noise("s", i) * 0.1),
              x_is: "step",
              threshold: 3.95,
              peers: x.map((_, i) => 3.5 + noise("sp", i) * 0.05),
            },
          ],
        },
        active: true,
        recommended_action: "monitor",
        cause: "gpu_thermal",
        event: null,
        incident: id,
        cleared_at: null,
      },
    ],
    plan: null,
    actions: [],
  };
}

/** What the exit detector says about a killed rank. */
export function exitFinding(incident, job, rank, node, time) {
  return {
    id: uuid(time, "find"),
    kind: "process_exit",
    entity: { node, device: null, job: job.id, rank, peer: null },
    time,
    severity: "critical",
    detector: "process_exit",
    confidence: 1,
    evidence: {
      summary: `Process 41189 of rank ${rank} ended by signal 9 without a request.`,
      numbers: { signal: 9, delay_seconds: 0.18 },
      series: [],
    },
    active: true,
    recommended_action: "restart_job",
    cause: "software",
    event: uuid(time, "event"),
    incident,
    cleared_at: null,
  };
}
