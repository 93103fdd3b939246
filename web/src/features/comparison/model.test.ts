import { describe, expect, it } from "vitest";
import type { MeasuredCohort, UpdateShift } from "@/api/types";
import {
  changeText,
  headline,
  intervalText,
  lastUpdate,
  localOf,
  secondsOf,
  softwareOf,
  standouts,
} from "./model";

const cohort = (name: string, first_at: number): MeasuredCohort => ({
  cohort: name,
  hardware: name.split("; ")[0] ?? name,
  nodes: 4,
  first_at,
  last_at: first_at + 1,
});

const device = (node: string, assessment: "slower" | "explained", worse: number) => ({
  node,
  device: "gpu0",
  before: 1,
  after: 2,
  worse,
  assessment,
});

const shift = (change: Partial<UpdateShift>): UpdateShift => ({
  benchmark: "gemm",
  metric: "bf16",
  unit: "FLOP/s",
  better: "higher",
  verdict: "pass",
  reason: "",
  blame: null,
  worse: 0,
  worse_low: -0.001,
  worse_high: 0.001,
  paired: true,
  compared: 12,
  before: [1],
  after: [1],
  devices: [],
  ...change,
});

describe("sides", () => {
  it("offers the newest version of a hardware and the previous one", () => {
    const all = [
      cohort("a; driver 1", 10),
      cohort("b; driver 1", 40),
      cohort("a; driver 2", 30),
      cohort("a", 5),
    ];
    expect(lastUpdate(all)).toEqual({ before: "a; driver 1", after: "a; driver 2" });
    expect(lastUpdate(all.slice(0, 2))).toBeNull();
  });
  it("separates the software from the hardware", () => {
    expect(softwareOf("8x H100; driver 550; vbios 96")).toBe("driver 550; vbios 96");
    expect(softwareOf("8x H100")).toBe("any software");
  });
  it("keeps a time through a date field", () => {
    expect(secondsOf(localOf(1_700_000_040))).toBe(1_700_000_040);
    expect(secondsOf("")).toBeUndefined();
    expect(localOf(undefined)).toBe("");
  });
});

describe("words", () => {
  it("names the direction and size of a change", () => {
    expect(changeText(0.0526)).toBe("5.3% slower");
    expect(changeText(-0.01)).toBe("1.0% faster");
    expect(changeText(0.0001)).toBe("unchanged");
    expect(changeText(null)).toBe("not comparable");
    expect(intervalText({ worse_low: -0.01, worse_high: 0.02 })).toBe("−1.0% to +2.0%");
    expect(intervalText({ worse_low: null, worse_high: null })).toContain("too few devices");
  });
  it("names the update, the devices, or neither, and keeps unknown as unknown", () => {
    const slow = [device("n3", "slower", 0.2), device("n4", "explained", 0.05)];
    expect(headline({ at: null, metrics: [shift({ verdict: "fail", blame: "update" }), shift({})] })).toBe(
      "The update caused a slowdown: 1 of 2 metrics became slower on all devices.",
    );
    expect(headline({ at: 5, metrics: [shift({ verdict: "fail", blame: "devices", devices: slow })] })).toBe(
      "The change caused no slowdown: 1 device stands out.",
    );
    expect(headline({ at: 5, metrics: [shift({ verdict: "unknown" }), shift({})] })).toMatch(
      /^Unknown for 1 of 2/,
    );
    expect(headline({ at: 5, metrics: [shift({})] })).toMatch(/^No metric became slower/);
  });
  it("lists each device once, slowest first", () => {
    const metrics = [
      shift({ devices: [device("n1", "slower", 0.1), device("n2", "slower", 0.2)] }),
      shift({ metric: "fp8", devices: [device("n2", "slower", 0.3)] }),
    ];
    expect(standouts(metrics).map((one) => [one.node, one.of.map((of) => of.metric)])).toEqual([
      ["n2", ["fp8", "bf16"]],
      ["n1", ["bf16"]],
    ]);
  });
});
