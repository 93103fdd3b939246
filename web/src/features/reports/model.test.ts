import { describe, expect, it } from "vitest";
import type { DrainCounts, ReliabilitySummary } from "@/api/types";
import { change, falseDrains, gpuHours, hours, limits, lostParts } from "./model";

describe("figures of a report", () => {
  it("writes hours with a unit that fits", () => {
    expect([hours(0.5), hours(34), hours(240), hours(40_000), hours(null)]).toEqual([
      "0.5 h",
      "34 h",
      "10 d",
      "4.56 y",
      "–",
    ]);
    expect([gpuHours(0), gpuHours(1.234), gpuHours(4120.4)]).toEqual(["0", "1.23", "4\u202f120"]);
  });

  it("says what is known without a failure", () => {
    const between = { exposure_hours: 1000, failures: 0, hours: null, low: 271, high: null };
    expect(limits(between)).toBe("no failure in 41.7 d of nodes; at least 11.3 d");
    expect(limits(between, "GPUs")).toBe("no failure in 41.7 d of GPUs; at least 11.3 d");
    expect(limits({ ...between, exposure_hours: 0 })).toBe("no time in service of nodes is known");
    expect(limits({ ...between, failures: 4, hours: 250, low: 98, high: 917 })).toBe("95 %: 98 h to 38.2 d");
  });

  it("counts false drains among those that are decided", () => {
    const found = { false_drains: 1, confirmed: 9, ratio: 0.1, low: 0.018, high: 0.404 } as DrainCounts;
    expect(falseDrains(found)).toBe("1 of 10 (95 %: 1.8% to 40.4%)");
    expect(falseDrains({ ...found, ratio: null })).toBe("–");
  });

  it("compares with the period before", () => {
    expect(change(0.97, 0.95)).toBe("+2.0 points (before: 95.0%)");
    expect(change(0.95, 0.97)).toBe("−2.0 points (before: 97.0%)");
    expect(change(0.97, null)).toBe("no period before to compare with");
  });

  it("shares what was lost", () => {
    const lost = { detection: 1, recovery: 1, repeated: 2, degraded: 4, out_of_service: 8 };
    const parts = lostParts({ lost_gpu_hours: lost } as ReliabilitySummary);
    expect(parts.map((part) => part.share)).toEqual([0.0625, 0.0625, 0.125, 0.25, 0.5]);
  });
});
