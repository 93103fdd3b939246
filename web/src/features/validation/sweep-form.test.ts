import { describe, expect, it } from "vitest";
import type { Sweep } from "@/api/types";
import { emptySweep, inZone, isComplete, names, sweepBody, sweepChange, sweepFields } from "./sweep-form";

describe("the form of a sweep", () => {
  it("omits empty fields", () => {
    expect(sweepBody({ ...emptySweep, name: " nightly ", suite: "quick", when: "request" })).toEqual({
      name: "nightly",
      suite: "quick",
      schedule: null,
      timezone: "UTC",
      run_at: null,
      nodes: null,
      racks: [],
      cohorts: [],
      states: [],
      enabled: true,
      benchmarks: null,
      max_concurrent: null,
      max_per_switch: null,
      retries: 0,
      remeasure: 0,
      timeout_seconds: null,
    });
  });

  it("sends only changes, with the version that was read", () => {
    const sweep = {
      version: 4,
      enabled: false,
      name: "nightly",
      suite: "quick",
      schedule: "0 3 * * *",
      timezone: "Europe/Berlin",
      run_at: null,
      nodes: ["a", "b"],
      racks: ["r1"],
      cohorts: ["h100"],
      states: ["healthy"],
      cohort: null,
      benchmarks: ["gemm"],
      max_concurrent: 2,
      max_per_switch: null,
      retries: 1,
      remeasure: 0,
      timeout_seconds: 90,
    } as Sweep;
    const fields = sweepFields(sweep);
    expect(fields.timeoutMinutes).toBe("1.5");
    expect(sweepChange(sweep, fields)).toEqual({ version: 4 });
    expect(
      sweepChange(sweep, { ...fields, nodes: "", atOnce: "", remeasure: "3", schedule: "every 60s" }),
    ).toEqual({
      version: 4,
      nodes: null,
      max_concurrent: null,
      remeasure: 3,
      schedule: "every 60s",
    });
  });

  it("converts minutes to seconds and text to numbers", () => {
    const body = sweepBody({
      ...emptySweep,
      suite: "deep",
      nodes: "b, a\nb",
      cohorts: ["h100", "h200"],
      benchmarks: ["gemm"],
      atOnce: "4",
      perSwitch: "1",
      retries: "2",
      timeoutMinutes: "1.5",
    });
    expect(body).toMatchObject({
      nodes: ["b", "a"],
      cohorts: ["h100", "h200"],
      benchmarks: ["gemm"],
      max_concurrent: 4,
      max_per_switch: 1,
      retries: 2,
      timeout_seconds: 90,
    });
  });

  it("runs once at a local time, instead of by schedule", () => {
    const once = { ...emptySweep, suite: "quick", when: "once", runAt: "2026-03-29T04:30" } as const;
    const body = sweepBody(once);
    expect(body).toMatchObject({ schedule: null, run_at: new Date(2026, 2, 29, 4, 30).getTime() / 1000 });
    expect(sweepFields(body as Sweep)).toMatchObject({ when: "once", runAt: once.runAt });
    expect([once, { ...once, runAt: "" }, emptySweep].map(isComplete)).toEqual([true, false, true]);
    expect(inZone(1774744200, "Europe/Berlin")).toContain("01:30");
    expect(inZone(1774747800, "Europe/Berlin")).toContain("03:30");
  });

  it("keeps each name once", () => {
    expect(names(" a,b  a\n")).toEqual(["a", "b"]);
  });
});
