import { describe, expect, it } from "vitest";
import { eventLook, eventText } from "./event-text";

it("tells how a process ended", () => {
  expect(eventText({ kind: "process_exit", data: { pid: 7, signal: 9 } })).toBe(
    "Process 7 killed by SIGKILL",
  );
  expect(eventText({ kind: "process_exit", data: { exit_code: 3 } })).toBe("Process exited with code 3");
  expect(eventText({ kind: "process_exit", data: { signal: 15, expected: true } })).toContain("as asked");
  expect(eventLook({ kind: "process_exit", data: { expected: true } }).tone).toBe("unknown");
});

it("adds phases up, and a given total instead", () => {
  expect(eventText({ kind: "recovered", data: { seconds: { fence: 0.5, load: 1 }, steps_lost: 1 } })).toBe(
    "Recovered in 1.50 s, 1 step lost",
  );
  expect(eventText({ kind: "recovered", data: { seconds: { fence: 0.5, total: 2 } } })).toBe(
    "Recovered in 2.00 s",
  );
});

it("tells how a job began and ended", () => {
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

it("shows what it does not know as its data", () => {
  expect(eventText({ kind: "node_lost", data: { code: 79 } })).toBe("Node lost: code 79");
  expect(eventText({ kind: "plan_chosen", data: {} })).toBe("Plan: nothing feasible");
});

describe("what happens to hardware", () => {
  it.each([
    ["xid", { code: 79, text: "GPU has fallen off the bus" }, "XID 79: GPU has fallen off the bus"],
    ["xid", { code: 13, source: "kernel" }, "XID 13, told by the kernel"],
    ["sxid", { code: 12028, fatal: false, link: 32 }, "Non-fatal SXID 12028 on link 32"],
    ["gpu_lost", { reason: "no answer for 5 s" }, "The GPU does not answer: no answer for 5 s"],
    ["gpu_lost", { cleared: true }, "The GPU answers again"],
    ["gpu_notice", { what: "ecc_storm" }, "A storm of ECC errors"],
    ["kernel_fault", { fault: "soft_lockup" }, "Soft lockup"],
    ["link_down", { since_up: 7200 }, "Link down after 2 h up"],
    ["link_up", { since_down: 3 }, "Link up after 3 s down"],
    ["node_stopping", { reason: "shutdown" }, "The node shuts down"],
    ["node_started", { uptime: 90 }, "The probe began, 1 min 30 s after boot"],
    ["health_report", { source: "nvsentinel", check: "GpuXid", message: "bad" }, "nvsentinel, GpuXid: bad"],
    [
      "probe_silent",
      { sampler: "nvml", reason: "a call hangs" },
      "The probe for nvml is silent: a call hangs",
    ],
    ["probe_silent", { sampler: "nvml", cleared: true }, "The probe for nvml speaks again"],
  ] as const)("%s %j", (kind, data, text) => {
    expect(eventText({ kind, data })).toBe(text);
  });

  it("looks as bad as it is, and better when it is over", () => {
    expect(eventLook({ kind: "gpu_lost", data: {} }).tone).toBe("quarantined");
    expect(eventLook({ kind: "gpu_lost", data: { cleared: true } }).tone).toBe("healthy");
    expect(eventLook({ kind: "sxid", data: { fatal: false } }).tone).toBe("suspect");
    expect(eventLook({ kind: "health_report", data: { healthy: true } }).tone).toBe("healthy");
    expect(eventLook({ kind: "kernel_fault", data: { severity: "critical" } }).tone).toBe("quarantined");
  });
});
