import { describe, expect, it } from "vitest";
import type { Recovery } from "@/api/types";
import { duration } from "@/lib/format";
import {
  evaluationTable,
  excessCostText,
  explanationText,
  predictionText,
  strategyText,
} from "./decision-model";

type Decision = NonNullable<Recovery["decision"]>;

const option = (strategies: string[], seconds: number | null, parts: Record<string, number> = {}) => ({
  strategies,
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

describe("evaluated strategies", () => {
  it("separates feasible from infeasible strategies, on one scale", () => {
    const table = evaluationTable(decision, "local_slot");
    expect(table.possible.map((row) => row.name)).toEqual([
      "Drop and heal",
      "Drop and heal, then standby swap",
      "Local slot",
    ]);
    expect(table.impossible.map((row) => row.name)).toEqual(["Morph"]);
    expect(table.scale).toBe(3);
    expect(table.phases).toEqual(["downtime", "degraded"]);
  });

  it("marks the chosen and the executed strategy once each", () => {
    const table = evaluationTable(decision, "local_slot");
    expect(table.possible.map((row) => row.chosen)).toEqual([true, false, false]);
    expect(table.possible.map((row) => row.done)).toEqual([false, false, true]);
    expect(evaluationTable(decision, "drop_and_heal").possible.map((row) => row.done)).toEqual([
      true,
      false,
      false,
    ]);
    expect(evaluationTable(decision, null).possible.some((row) => row.done)).toBe(false);
  });

  it("formats strategy names in sentences", () => {
    const explanation = "drop_and_heal: it costs least. Next best: drop_and_heal, then standby_swap.";
    expect(explanationText({ ...decision, explanation })).toBe(
      "Drop and heal: it costs least. Next best: drop and heal, then standby swap.",
    );
  });

  it("compares the prediction with the measurement", () => {
    expect(predictionText({ predicted_seconds: 2, seconds: 2.4 })).toContain(
      "1.20 times the prediction, within",
    );
    expect(predictionText({ predicted_seconds: 2, seconds: 3 })).toContain(
      "1.50 times the prediction, outside",
    );
    expect(predictionText({ predicted_seconds: null, seconds: 3 })).toBeNull();
    expect(predictionText({ predicted_seconds: 2, seconds: null })).toBeNull();
    expect(excessCostText({ excess_cost_seconds: 0 })).toBe("none");
    expect(excessCostText({ excess_cost_seconds: null })).toBe("–");
    expect(excessCostText({ excess_cost_seconds: 12 })).toBe(duration(12));
    expect(strategyText(["local_slot"])).toBe("Local slot");
  });
});
