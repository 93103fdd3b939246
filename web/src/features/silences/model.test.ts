import { describe, expect, it } from "vitest";
import type { Silence } from "@/api/types";
import { bodyOf, conditionsOf, emptyDraft, endsSoon, limitsOf } from "./model";

const silence: Silence = {
  id: "s",
  reason: "rewiring",
  actor: "ada",
  created_at: 0,
  starts_at: 0,
  ends_at: 1000,
  ended_by: null,
  hours: null,
  timezone: "UTC",
  nodes: ["n1", "n2"],
  racks: [],
  switches: [],
  cohorts: [],
  jobs: [],
  kinds: ["xid"],
  detectors: [],
  state: "active",
  nodes_matched: 2,
};

describe("silences", () => {
  it("names only the conditions that are given", () => {
    expect(conditionsOf(silence)).toEqual(["nodes n1, n2", "kinds xid"]);
  });

  it("tells the limits of what it covers on a node", () => {
    expect(limitsOf(silence)).toEqual(["kinds xid"]);
  });

  it("warns a quarter of an hour before its end", () => {
    expect(endsSoon(silence, 99)).toBe(false);
    expect(endsSoon(silence, 101)).toBe(true);
    expect(endsSoon({ ...silence, state: "over" }, 101)).toBe(false);
  });

  it("needs a condition and a length", () => {
    expect(bodyOf(emptyDraft, 0)).toBeNull();
    expect(bodyOf({ ...emptyDraft, racks: "r1", length: "0" }, 0)).toBeNull();
    expect(bodyOf({ ...emptyDraft, racks: "r1, r2" }, 100)).toMatchObject({
      racks: ["r1", "r2"],
      ends_at: 7300,
      hours: null,
    });
  });
});
