import { describe, expect, it } from "vitest";
import type { Remediation } from "@/api/types";
import { breakerText, byUrgency, decisiveRule, isDenied, isWaiting, wantsText } from "./model";

const make = (change: Partial<Remediation>): Remediation => ({
  id: "1",
  incident: "i1",
  node: "n1",
  device: null,
  remedy: "reboot_node",
  state: "proposed",
  dry_run: true,
  reason: "",
  rules: [],
  created_at: 0,
  decided_at: null,
  decided_by: null,
  ...change,
});

describe("wantsText", () => {
  it("names the node, and the device that would be reset", () => {
    expect(wantsText(make({}))).toBe("Drain n1, then reboot it");
    expect(wantsText(make({ remedy: "reset_gpu", device: "gpu3" }))).toBe("Drain n1, then reset gpu3");
    expect(wantsText(make({ remedy: "reset_gpu" }))).toBe("Drain n1, then reset the GPU");
    expect(wantsText(make({ remedy: "migrate", device: "gpu3" }))).toBe(
      "Move the ranks off n1 to warm standbys",
    );
    expect(wantsText(make({ remedy: "watch" }))).toBe("Watch on n1");
  });
});

it("puts what waits first, then the newest", () => {
  const items = [
    make({ id: "old", state: "held", created_at: 1 }),
    make({ id: "done", state: "done", created_at: 9 }),
    make({ id: "new", created_at: 5 }),
  ];
  expect(byUrgency(items).map((item) => item.id)).toEqual(["new", "old", "done"]);
  expect(items.filter(isWaiting)).toHaveLength(2);
});

it("finds the rule that decided", () => {
  const rule = (name: string, verdict: "allow" | "hold" | "deny") => ({ name, verdict, why: "" });
  expect(decisiveRule([rule("a", "allow"), rule("b", "hold"), rule("c", "deny")])?.name).toBe("c");
  expect(decisiveRule([rule("a", "allow"), rule("b", "hold")])?.name).toBe("b");
  expect(decisiveRule([rule("a", "allow")])).toBeNull();
  expect(isDenied({ rules: [rule("a", "allow"), rule("b", "deny")] })).toBe(true);
  expect(isDenied({ rules: [rule("b", "hold")] })).toBe(false);
});

it("says what the breaker counts", () => {
  const breaker = {
    open: false,
    share_limit: 0.05,
    window_seconds: 600,
    touched: 3,
    fleet: 240,
    rack_limit: 2,
    why: "",
  };
  expect(breakerText(breaker)).toBe("3 of at most 12 nodes (5 % of 240) in 10 min, at most 2 in a rack");
});
