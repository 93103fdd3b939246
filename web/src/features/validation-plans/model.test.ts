import { describe, expect, it } from "vitest";
import type { ValidationPlan } from "@/api/types";
import { auditOrder, type Considered, headline, planBody, riskText, setText } from "./model";

const considered = (benchmark: string, gain: number): Considered => ({
  benchmark,
  chosen: false,
  seconds: 1,
  gain,
  gain_per_second: gain,
  risk_before: 0.5,
  risk_after: 0.5 - gain,
  finds: 0,
  alone: 0,
  reason: "",
  nodes: 1,
});

describe("a validation plan", () => {
  it("converts percent to ratios", () => {
    const fields = {
      nodes: "a b",
      jobHours: "24",
      targetPercent: "5",
      worthNodeHours: " ",
      suite: "standard",
      uniform: true,
    };
    expect(planBody(fields)).toMatchObject({
      nodes: ["a", "b"],
      job_hours: 24,
      target_risk: 0.05,
      worth_node_hours: null,
      uniform: true,
      order: false,
    });
  });

  it("lists chosen benchmarks in order, then the rest by gain", () => {
    const plan = {
      benchmarks: ["nccl", "gemm"],
      considered: [
        considered("disk", 0.01),
        considered("gemm", 0.1),
        considered("copy", 0.02),
        considered("nccl", 0),
      ],
    };
    expect(auditOrder(plan).map((one) => one.benchmark)).toEqual(["nccl", "gemm", "copy", "disk"]);
  });

  it("names the nodes to run on", () => {
    const plan = {
      benchmarks: ["gemm"],
      nodes: ["a", "b"],
      run_on: ["a"],
      seconds: 90,
    } as unknown as ValidationPlan;
    expect(headline(plan)).toBe("Run 1 benchmark on 1 of 2 nodes, about 1 min 30 s per node.");
    expect(headline({ ...plan, run_on: ["a", "b"] })).toContain("on all 2 nodes");
    expect(headline({ ...plan, benchmarks: [] })).toBe("No validation needed.");
  });

  it("names the benchmarks of each node", () => {
    const plan = { per_node: true, sets: { a: ["gemm", "copy"], b: [] } };
    expect(["a", "b", "c"].map((node) => setText(plan, node))).toEqual([
      "gemm, copy",
      "none",
      "no validation needed",
    ]);
  });

  it("hides a risk that was not learned", () => {
    expect(riskText({ learned: false }, 0)).toBe("unknown");
    expect(riskText({ learned: true }, 0.034)).toBe("3.4%");
  });
});
