import { describe, expect, it } from "vitest";
import type { PolicyRule } from "@/api/types";
import { changeText, chosenRules, matches, rulesIn, withStanza } from "./model";

const rule = (code: number, change: Partial<PolicyRule> = {}): PolicyRule => ({
  family: "xid",
  code,
  title: "the GPU fell off the bus",
  group: "bus",
  severity: "critical",
  recommended_action: "reboot_node",
  repeat: null,
  note: "",
  overridden: false,
  ...change,
});

describe("matches", () => {
  it("finds a code by its prefix and a title by its words", () => {
    expect(matches(rule(79), "79")).toBe(true);
    expect(matches(rule(179), "79")).toBe(false);
    expect(matches(rule(79), "bus fell")).toBe(true);
    expect(matches(rule(79), "memory")).toBe(false);
    expect(matches(rule(79), " ")).toBe(true);
  });
});

it("filters rules", () => {
  const rules = [
    rule(13, { recommended_action: "restart_job", overridden: true }),
    rule(79),
    rule(12028, { family: "sxid" }),
  ];
  const codes = (only: "overridden" | "evicts" | "sxid") => chosenRules(rules, { only }).map((r) => r.code);
  expect(codes("overridden")).toEqual([13]);
  expect(codes("evicts")).toEqual([79, 12028]);
  expect(codes("sxid")).toEqual([12028]);
  expect(chosenRules(rules, {})).toHaveLength(3);
});

it("hides numbers without meaning", () => {
  const rules = [rule(79), rule(7, { severity: "info", recommended_action: "none", title: "unused" })];
  expect(chosenRules(rules, {}).map((r) => r.code)).toEqual([79]);
  expect(chosenRules(rules, { only: "all" })).toHaveLength(2);
  expect(chosenRules(rules, { q: "7" })).toHaveLength(2);
});

describe("rulesIn", () => {
  it("reads single codes, lists, ranges, and names", () => {
    const toml =
      '[xid.79]\nrecommended_action = "inspect_node"\n[xid."11,25"]\n[sxid."11021-11023".says]\n[xid.unknown]\n';
    expect([...rulesIn(toml)]).toEqual([
      "xid.79",
      "xid.11",
      "xid.25",
      "sxid.11021",
      "sxid.11022",
      "sxid.11023",
      "xid.unknown",
    ]);
  });

  it("ignores comments and values", () => {
    expect(rulesIn('# [xid.79]\nnote = "[xid.80]"\n').size).toBe(0);
  });
});

describe("withStanza", () => {
  it("starts from the current rule, once", () => {
    const once = withStanza("", rule(79));
    expect(once).toContain("[xid.79]");
    expect(once).toContain('recommended_action = "reboot_node"');
    expect(withStanza(once, rule(79))).toBe(once);
    expect([...rulesIn(withStanza(once, rule(48)))]).toEqual(["xid.79", "xid.48"]);
  });
});

it("formats the change of a count", () => {
  expect([changeText(1, 3), changeText(3, 1), changeText(2, 2)]).toEqual(["+2", "−2", "no change"]);
});
