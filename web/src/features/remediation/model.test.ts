import { describe, expect, it } from "vitest";
import type { Remediation } from "@/api/types";
import { actionText, breakerText, byUrgency, decisiveRule, isDenied, isWaiting } from "./model";

const make = (change: Partial<Remediation>): Remediation => ({
  id: "1",
  incident: "i1",
  node: "n1",
  device: null,
  recommended_action: "reboot_node",
  state: "proposed",
  dry_run: true,
  reason: "",
  rules: [],
  created_at: 0,
  decided_at: null,
  decided_by: null,
  ...change,
});

describe("actionText", () => {
  it("names the node, and the device to reset", () => {
    expect(actionText(make({}))).toBe("Drain n1, then reboot it");
    expect(actionText(make({ recommended_action: "reset_gpu", device: "gpu3" }))).toBe(
      "Drain n1, then reset gpu3",
    );
    expect(actionText(make({ recommended_action: "reset_gpu" }))).toBe("Drain n1, then reset the GPU");
    expect(actionText(make({ recommended_action: "migrate_ranks", device: "gpu3" }))).toBe(
      "Move the ranks off n1 to warm standbys",
    );
    expect(actionText(make({ recommended_action: "monitor" }))).toBe("Monitor on n1");
  });
});

it("puts waiting proposals first, then the newest", () => {
  const items = [
    make({ id: "old", state: "held", created_at: 1 }),
    make({ id: "done", state: "done", created_at: 9 }),
    make({ id: "new", created_at: 5 }),
  ];
  expect(byUrgency(items).map((item) => item.id)).toEqual(["new", "old", "done"]);
  expect(items.filter(isWaiting)).toHaveLength(2);
});

it("finds the decisive rule", () => {
  const rule = (name: string, verdict: "allow" | "hold" | "deny") => ({ name, verdict, reason: "" });
  expect(decisiveRule([rule("a", "allow"), rule("b", "hold"), rule("c", "deny")])?.name).toBe("c");
  expect(decisiveRule([rule("a", "allow"), rule("b", "hold")])?.name).toBe("b");
  expect(decisiveRule([rule("a", "allow")])).toBeNull();
  expect(isDenied({ rules: [rule("a", "allow"), rule("b", "deny")] })).toBe(true);
  expect(isDenied({ rules: [rule("b", "hold")] })).toBe(false);
});

it("describes the breaker", () => {
  const breaker = {
    open: false,
    max_drained_ratio: 0.05,
    window_seconds: 600,
    touched: 3,
    fleet: 240,
    max_drained_per_rack: 2,
    reason: "",
  };
  expect(breakerText(breaker)).toBe("3 of at most 12 nodes (5% of 240) in 10 min, at most 2 in a rack");
});
