import { describe, expect, it } from "vitest";
import type { Validation } from "@/api/types";
import { heldText, progressShare, runOrder, runTotal, standingText, worst } from "./words";

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

describe("where a validation stands", () => {
  it("tells waiting from held, running by benchmark, and being called off from ended", () => {
    expect(standingText(one({}))).toBe("Waiting");
    expect(standingText(one({ held: true }))).toBe("Held");
    expect(standingText(one({ state: "taken" }))).toBe("Taken by the node");
    expect(standingText(one({ state: "running", progress: progress(3, 14) }))).toBe(
      "Gemm on gpu0, 3 of 14 done",
    );
    expect(standingText(one({ state: "running", progress: progress(3, 14), cancelled_at: 5 }))).toBe(
      "Being called off",
    );
    expect(standingText(one({ state: "done", cancelled_at: 5 }))).toBe("Done");
  });

  it("knows no share where the node said nothing", () => {
    expect(progressShare(one({}))).toBeNull();
    expect(progressShare(one({ progress: progress(0, 0) }))).toBeNull();
    expect(progressShare(one({ progress: progress(1, 4) }))).toBe(0.25);
  });

  it("names the limits that hold it back", () => {
    expect(heldText({ at_once: 4, per_switch: 1 })).toBe("at most 4 at once, 1 under one switch");
    expect(heldText({ at_once: null, per_switch: null })).toBe("waiting for others of its run");
  });
});

describe("a run", () => {
  it("shows outliers first, what passed last", () => {
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
    expect(runTotal({ counts: { pass: 1, warn: 2, fail: 3, unknown: 4, pending: 5 } })).toBe(15);
  });

  it("never calls nothing measured a pass", () => {
    expect(worst([])).toBe("unknown");
    expect(worst([{ verdict: "pass" }, { verdict: "unknown" }])).toBe("unknown");
    expect(worst([{ verdict: "warn" }, { verdict: "unknown" }])).toBe("unknown");
    expect(worst([{ verdict: "unknown" }, { verdict: "fail" }])).toBe("fail");
  });
});
