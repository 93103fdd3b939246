import { describe, expect, it } from "vitest";
import type { HealthState, Owner } from "@/api/types";
import { healthOrder } from "@/lib/status-styles";
import { allowedActions, blockedReason, likelyAction, round } from "./lifecycle-model";

const at = (state: HealthState, owner: Owner = "system") => ({ state, owner });

describe("actions on a node", () => {
  it("end quarantine only by validation", () => {
    expect(allowedActions(at("quarantined"))).toEqual(["validate"]);
    expect(likelyAction(at("quarantined"))).toBe("validate");
  });

  it("never undo an action of another system", () => {
    expect(allowedActions(at("draining", "operator"))).toContain("undrain");
    expect(allowedActions(at("draining", "external"))).not.toContain("undrain");
    expect(blockedReason(at("draining", "external"))).toContain("Another system");
    expect(blockedReason(at("draining", "operator"))).toBeNull();
  });

  it("do not start a second validation", () => {
    expect(allowedActions(at("validating"))).toEqual(["quarantine"]);
  });

  it("exist in every state", () => {
    for (const state of healthOrder) expect(allowedActions(at(state)).length).toBeGreaterThan(0);
  });
});

it("contains every state except unknown", () => {
  expect([...round, "unknown"].sort()).toEqual([...healthOrder].sort());
});
