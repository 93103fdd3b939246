import { describe, expect, it } from "vitest";
import type { Recovery } from "@/api/types";
import { duration } from "@/lib/format";
import { explanationText, promiseText, regretText, wayText, weighedTable } from "./decision-model";

type Decision = NonNullable<Recovery["decision"]>;

const option = (ways: string[], seconds: number | null, parts: Record<string, number> = {}) => ({
  ways,
  feasible: seconds !== null,
  executable: true,
  reason: "A sentence.",
  expected_s: seconds,
  gpu_seconds: seconds === null ? null : seconds * 4,
  rate: 1,
  parts,
});

const decision: Decision = {
  chosen: ["drop_and_heal"],
  explanation: "Drop and heal costs least.",
  fault: "process",
  lost: [1, 0],
  options: [
    option(["drop_and_heal"], 1.5, { downtime: 0.5, degraded: 1 }),
    option(["drop_and_heal", "standby_swap"], 1.8, { downtime: 0.8, degraded: 1 }),
    option(["local_slot"], 3, { downtime: 3 }),
    option(["morph"], null),
  ],
};

describe("what was weighed", () => {
  it("tells possible ways from impossible ones, on one scale", () => {
    const table = weighedTable(decision, "local_slot");
    expect(table.possible.map((row) => row.name)).toEqual([
      "Drop and heal",
      "Drop and heal, then standby swap",
      "Local slot",
    ]);
    expect(table.impossible.map((row) => row.name)).toEqual(["Morph"]);
    expect(table.scale).toBe(3);
    expect(table.phases).toEqual(["downtime", "degraded"]);
  });

  it("marks what was chosen and what was done, each once", () => {
    const table = weighedTable(decision, "local_slot");
    expect(table.possible.map((row) => row.chosen)).toEqual([true, false, false]);
    expect(table.possible.map((row) => row.done)).toEqual([false, false, true]);
    expect(weighedTable(decision, "drop_and_heal").possible.map((row) => row.done)).toEqual([
      true,
      false,
      false,
    ]);
    expect(weighedTable(decision, null).possible.some((row) => row.done)).toBe(false);
  });

  it("calls ways by their names in sentences too", () => {
    const explanation = "drop_and_heal: it costs least. Next best: drop_and_heal, then standby_swap.";
    expect(explanationText({ ...decision, explanation })).toBe(
      "Drop and heal: it costs least. Next best: drop and heal, then standby swap.",
    );
  });

  it("says how the prediction fared", () => {
    expect(promiseText({ promised_seconds: 2, seconds: 2.4 })).toContain("1.20 times as long, within");
    expect(promiseText({ promised_seconds: 2, seconds: 3 })).toContain("1.50 times as long, beyond");
    expect(promiseText({ promised_seconds: null, seconds: 3 })).toBeNull();
    expect(promiseText({ promised_seconds: 2, seconds: null })).toBeNull();
    expect(regretText({ regret_seconds: 0 })).toBe("none");
    expect(regretText({ regret_seconds: null })).toBe("–");
    expect(regretText({ regret_seconds: 12 })).toBe(duration(12));
    expect(wayText(["local_slot"])).toBe("Local slot");
  });
});
