import { describe, expect, it } from "vitest";
import type { Finding } from "@/api/types";
import { adviceIn, againstRanks, entityText, marksOf, onAxis, stepOf } from "./findings-model";

const nobody = { node: null, device: null, job: "j", rank: null, peer: null };
const finding = (change: Partial<Finding>): Finding => ({
  id: "f",
  kind: "compute_slow",
  entity: { ...nobody, rank: 3 },
  time: 1,
  severity: "warning",
  detector: "straggler",
  confidence: 1,
  evidence: { summary: "", numbers: {}, series: [] },
  active: true,
  remedy: "none",
  cause: null,
  event: null,
  incident: null,
  cleared_at: null,
  ...change,
});
const at = (step: number, change: Partial<Finding> = {}) =>
  finding({ evidence: { summary: "", numbers: { step }, series: [] }, ...change });

describe("findings", () => {
  it("stand at their own step, else where their evidence ends", () => {
    expect(stepOf(at(7))).toBe(7);
    const series = [{ name: "x", unit: "s", x: [5, 6], y: [1, 2], x_is: "step", threshold: null, peers: [] }];
    expect(stepOf(finding({ evidence: { summary: "", numbers: {}, series } }))).toBe(6);
    expect(stepOf(finding({}))).toBeNull();
  });

  it("are marked only on the axis, and advice is no fault", () => {
    const all = [at(30), at(10), at(99), at(20, { kind: "gc_jitter" }), finding({})];
    expect(onAxis(all, [5, 10, 40]).map((m) => m.step)).toEqual([10, 30]);
    expect(marksOf(onAxis(all, [5, 10, 40]))[0]).toMatchObject({ x: 10, label: "Compute slow" });
    expect(onAxis(all, [])).toEqual([]);
  });

  it("split into advice that holds and what is held against ranks", () => {
    const all = [
      finding({ kind: "stage_imbalance", time: 1 }),
      finding({ kind: "gc_jitter", time: 2 }),
      finding({ kind: "gc_jitter", active: false }),
      finding({ kind: "nan" }),
      finding({ kind: "compute_slow" }),
    ];
    expect(adviceIn(all).map((f) => f.kind)).toEqual(["gc_jitter", "stage_imbalance"]);
    expect([...againstRanks(all)]).toEqual([[3, "NaN, Compute slow"]]);
  });

  it("name the way between two ranks", () => {
    expect(entityText({ ...nobody, rank: 3, peer: 4 })).toBe("rank 3 → rank 4");
    expect(entityText({ ...nobody, rank: 3 })).toBe("rank 3");
    expect(entityText({ ...nobody, node: "n", device: "gpu0" })).toBe("n gpu0");
  });
});
