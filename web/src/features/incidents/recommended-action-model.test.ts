import { describe, expect, it } from "vitest";
import type { RecommendedAction } from "@/api/types";
import { recommendedActionOrder } from "@/lib/status-styles";
import { evicts, strongestAction } from "./recommended-action-model";

const finding = (action: RecommendedAction, active = true) => ({ recommended_action: action, active });

describe("strongestAction", () => {
  it("is the strongest one of the active findings", () => {
    expect(strongestAction([finding("monitor"), finding("reset_gpu"), finding("replace", false)])).toBe(
      "reset_gpu",
    );
  });

  it("is the strongest one of all findings where none is active", () => {
    expect(strongestAction([finding("inspect_node", false), finding("monitor", false)])).toBe("inspect_node");
  });

  it("is none without findings", () => {
    expect(strongestAction([])).toBe("none");
  });
});

it("moves work off the node from the reset of a GPU on", () => {
  expect(recommendedActionOrder.filter(evicts)).toEqual([
    "reset_gpu",
    "reboot_node",
    "inspect_node",
    "replace",
  ]);
});
