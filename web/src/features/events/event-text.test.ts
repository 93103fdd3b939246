import { describe, expect, it } from "vitest";
import { eventLook, eventText } from "./event-text";

it("describes how a process ended", () => {
  expect(eventText({ kind: "process_exit", data: { pid: 7, signal: 9 } })).toBe(
    "Process 7 killed by SIGKILL",
  );
  expect(eventText({ kind: "process_exit", data: { exit_code: 3 } })).toBe("Process exited with code 3");
  expect(eventText({ kind: "process_exit", data: { signal: 15, expected: true } })).toContain("as requested");
  expect(eventLook({ kind: "process_exit", data: { expected: true } }).tone).toBe("unknown");
});

it("sums phases, unless a total is given", () => {
  expect(
    eventText({ kind: "recovery_completed", data: { seconds: { fence: 0.5, load: 1 }, steps_lost: 1 } }),
  ).toBe("Recovered in 1.50 s, 1 step lost");
  expect(eventText({ kind: "recovery_completed", data: { seconds: { fence: 0.5, total: 2 } } })).toBe(
    "Recovered in 2.00 s",
  );
});

it("describes how a job started and ended", () => {
  expect(eventText({ kind: "job_started", data: { command: ["train.py", "--steps", "60"] } })).toBe(
    "Job started: train.py --steps 60",
  );
  expect(
    eventText({ kind: "job_finished", data: { state: "finished", exit_code: 0, reason: "", epoch: 60 } }),
  ).toBe("Job finished after step 60");
  expect(eventText({ kind: "job_finished", data: { state: "failed", reason: "no plan" } })).toBe(
    "Job failed: no plan",
  );
});

it("shows the data of unknown events", () => {
  expect(eventText({ kind: "node_lost", data: { code: 79 } })).toBe("Node lost: code 79");
  expect(eventText({ kind: "recovery_planned", data: {} })).toBe("Plan: no feasible strategy");
});

describe("hardware events", () => {
  it.each([
    ["xid", { code: 79, text: "GPU has fallen off the bus" }, "XID 79: GPU has fallen off the bus"],
    ["xid", { code: 13, source: "kernel" }, "XID 13, reported by the kernel"],
    ["sxid", { code: 12028, fatal: false, link: 32 }, "Non-fatal SXID 12028 on link 32"],
    ["gpu_lost", { reason: "no answer for 5 s" }, "The GPU does not respond: no answer for 5 s"],
    ["gpu_lost", { cleared: true }, "The GPU responds again"],
    ["gpu_event", { what: "ecc_storm" }, "Burst of ECC errors"],
    ["kernel_fault", { fault: "soft_lockup" }, "Soft lockup"],
    ["link_down", { since_up: 7200 }, "Link down after 2 h up"],
    ["link_up", { since_down: 3 }, "Link up after 3 s down"],
    ["node_stopping", { reason: "shutdown" }, "Node shutting down"],
    ["node_started", { uptime: 90 }, "Node daemon started, 1 min 30 s after boot"],
    ["node_rebooted", { away: 90 }, "Node rebooted, not heard for 1 min 30 s"],
    ["health_report", { source: "nvsentinel", check: "GpuXid", message: "bad" }, "nvsentinel, GpuXid: bad"],
    [
      "probe_unresponsive",
      { sampler: "nvml", reason: "a call hangs" },
      "The sampler nvml does not respond: a call hangs",
    ],
    ["probe_unresponsive", { sampler: "nvml", cleared: true }, "The sampler nvml responds again"],
  ] as const)("%s %j", (kind, data, text) => {
    expect(eventText({ kind, data })).toBe(text);
  });

  it("has a tone by severity, and a better one after it cleared", () => {
    expect(eventLook({ kind: "gpu_lost", data: {} }).tone).toBe("quarantined");
    expect(eventLook({ kind: "gpu_lost", data: { cleared: true } }).tone).toBe("healthy");
    expect(eventLook({ kind: "sxid", data: { fatal: false } }).tone).toBe("suspect");
    expect(eventLook({ kind: "health_report", data: { healthy: true } }).tone).toBe("healthy");
    expect(eventLook({ kind: "kernel_fault", data: { severity: "critical" } }).tone).toBe("quarantined");
  });
});
