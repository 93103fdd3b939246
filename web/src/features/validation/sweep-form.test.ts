import { describe, expect, it } from "vitest";
import type { Sweep } from "@/api/types";
import { emptySweep, names, sweepBody, sweepChange, sweepFields } from "./sweep-form";

describe("the form of a sweep", () => {
  it("omits empty fields", () => {
    expect(sweepBody({ ...emptySweep, name: " nightly ", suite: "quick", schedule: " " })).toEqual({
      name: "nightly",
      suite: "quick",
      schedule: null,
      nodes: null,
      enabled: true,
      cohort: null,
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
      nodes: ["a", "b"],
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
      cohort: "h100",
      benchmarks: ["gemm"],
      atOnce: "4",
      perSwitch: "1",
      retries: "2",
      timeoutMinutes: "1.5",
    });
    expect(body).toMatchObject({
      nodes: ["b", "a"],
      cohort: "h100",
      benchmarks: ["gemm"],
      max_concurrent: 4,
      max_per_switch: 1,
      retries: 2,
      timeout_seconds: 90,
    });
  });

  it("keeps each name once", () => {
    expect(names(" a,b  a\n")).toEqual(["a", "b"]);
  });
});
