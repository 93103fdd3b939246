import { describe, expect, it } from "vitest";
import type { HealthState, Owner } from "@/api/types";
import { healthOrder } from "@/lib/states";
import { actsFor, closedDoor, likelyAct, round } from "./life-cycle-model";

const at = (state: HealthState, owner: Owner = "machine") => ({ state, owner });

describe("acts on a node", () => {
  it("lead out of quarantine by validation only", () => {
    expect(actsFor(at("quarantined"))).toEqual(["validate"]);
    expect(likelyAct(at("quarantined"))).toBe("validate");
  });

  it("never undo what another system did", () => {
    expect(actsFor(at("draining", "person"))).toContain("undrain");
    expect(actsFor(at("draining", "outside"))).not.toContain("undrain");
    expect(closedDoor(at("draining", "outside"))).toContain("Another system");
    expect(closedDoor(at("draining", "person"))).toBeNull();
  });

  it("do not interrupt a validation with another", () => {
    expect(actsFor(at("validating"))).toEqual(["quarantine"]);
  });

  it("exist in every state", () => {
    for (const state of healthOrder) expect(actsFor(at(state)).length).toBeGreaterThan(0);
  });
});

it("goes round through every state but unknown", () => {
  expect([...round, "unknown"].sort()).toEqual([...healthOrder].sort());
});
