import { describe, expect, it } from "vitest";
import type { Finding } from "@/api/types";
import { againstRanks, entityText, marksOf, onAxis, recommendationsIn, stepOf } from "./findings-model";

const nobody = { node: null, device: null, job: "j", rank: null, peer: null };
const finding = (change: Partial<Finding>): Finding => ({
  id: "f",
  kind: "straggler",
  entity: { ...nobody, rank: 3 },
  time: 1,
  severity: "warning",
  detector: "straggler",
  confidence: 1,
  evidence: { summary: "", numbers: {}, series: [] },
  active: true,
  recommended_action: "none",
  cause: null,
  event: null,
  incident: null,
  cleared_at: null,
  ...change,
});
const at = (step: number, change: Partial<Finding> = {}) =>
  finding({ evidence: { summary: "", numbers: { step }, series: [] }, ...change });

describe("findings", () => {
  it("are at their own step, else at the end of their evidence", () => {
    expect(stepOf(at(7))).toBe(7);
    const series = [{ name: "x", unit: "s", x: [5, 6], y: [1, 2], x_is: "step", threshold: null, peers: [] }];
    expect(stepOf(finding({ evidence: { summary: "", numbers: {}, series } }))).toBe(6);
    expect(stepOf(finding({}))).toBeNull();
  });

  it("are marked only on the axis, without recommendations", () => {
    const all = [at(30), at(10), at(99), at(20, { kind: "gc_jitter" }), finding({})];
    expect(onAxis(all, [5, 10, 40]).map((m) => m.step)).toEqual([10, 30]);
    expect(marksOf(onAxis(all, [5, 10, 40]))[0]).toMatchObject({ x: 10, label: "Straggler" });
    expect(onAxis(all, [])).toEqual([]);
  });

  it("are split into recommendations and faults of ranks", () => {
    const all = [
      finding({ kind: "stage_imbalance", time: 1 }),
      finding({ kind: "gc_jitter", time: 2 }),
      finding({ kind: "gc_jitter", active: false }),
      finding({ kind: "nan" }),
      finding({ kind: "straggler" }),
    ];
    expect(recommendationsIn(all).map((f) => f.kind)).toEqual(["gc_jitter", "stage_imbalance"]);
    expect([...againstRanks(all)]).toEqual([[3, "NaN, Straggler"]]);
  });

  it("name the two ranks of a link", () => {
    expect(entityText({ ...nobody, rank: 3, peer: 4 })).toBe("rank 3 → rank 4");
    expect(entityText({ ...nobody, rank: 3 })).toBe("rank 3");
    expect(entityText({ ...nobody, node: "n", device: "gpu0" })).toBe("n gpu0");
  });
});
