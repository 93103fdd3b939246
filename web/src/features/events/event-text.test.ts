import { expect, it } from "vitest";
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
  expect(eventText({ kind: "xid", data: { code: 79 } })).toBe("XID: code 79");
  expect(eventText({ kind: "plan_chosen", data: {} })).toBe("Plan: nothing feasible");
});
