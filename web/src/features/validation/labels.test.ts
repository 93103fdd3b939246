import { describe, expect, it } from "vitest";
import type { Validation } from "@/api/types";
import { heldText, progressShare, progressText, runOrder, runTotal, worst } from "./labels";

const progress = (index: number, total: number): Validation["progress"] => ({
  index,
  total,
  benchmark: "gemm",
  device: "gpu0",
  state: "running",
  done: [],
});
const one = (more: Partial<Validation>) => ({
  state: "queued" as Validation["state"],
  held: false,
  progress: null as Validation["progress"],
  cancelled_at: null as number | null,
  verdict: "unknown" as Validation["verdict"],
  node: "n",
  ...more,
});

describe("the progress of a validation", () => {
  it("separates waiting, held, running, canceling, and ended", () => {
    expect(progressText(one({}))).toBe("Waiting");
    expect(progressText(one({ held: true }))).toBe("Held");
    expect(progressText(one({ state: "taken" }))).toBe("Fetched by the node");
    expect(progressText(one({ state: "running", progress: progress(3, 14) }))).toBe(
      "Gemm on gpu0, 3 of 14 done",
    );
    expect(progressText(one({ state: "running", progress: progress(3, 14), cancelled_at: 5 }))).toBe(
      "Canceling",
    );
    expect(progressText(one({ state: "done", cancelled_at: 5 }))).toBe("Done");
  });

  it("has no ratio without reports of the node", () => {
    expect(progressShare(one({}))).toBeNull();
    expect(progressShare(one({ progress: progress(0, 0) }))).toBeNull();
    expect(progressShare(one({ progress: progress(1, 4) }))).toBe(0.25);
  });

  it("names the limits of a held validation", () => {
    expect(heldText({ max_concurrent: 4, max_per_switch: 1 })).toBe("at most 4 concurrent, 1 per switch");
    expect(heldText({ max_concurrent: null, max_per_switch: null })).toBe(
      "waiting for other nodes of the run",
    );
  });
});

describe("a run", () => {
  it("shows outliers first, passed nodes last", () => {
    const rows = [
      one({ node: "passed", state: "done", verdict: "pass" }),
      one({ node: "held", held: true }),
      one({ node: "unknown", state: "expired" }),
      one({ node: "running", state: "running" }),
      one({ node: "failed-10", state: "done", verdict: "fail" }),
      one({ node: "failed-9", state: "done", verdict: "fail" }),
    ];
    expect(rows.sort(runOrder).map((row) => row.node)).toEqual([
      "failed-9",
      "failed-10",
      "unknown",
      "running",
      "held",
      "passed",
    ]);
  });

  it("counts every node once", () => {
    expect(runTotal({ counts: { pass: 1, warn: 2, fail: 3, unknown: 4, skipped: 6, pending: 5 } })).toBe(21);
  });

  it("does not pass without measurements", () => {
    expect(worst([])).toBe("unknown");
    expect(worst([{ verdict: "pass" }, { verdict: "unknown" }])).toBe("unknown");
    expect(worst([{ verdict: "warn" }, { verdict: "unknown" }])).toBe("unknown");
    expect(worst([{ verdict: "unknown" }, { verdict: "fail" }])).toBe("fail");
  });
});
