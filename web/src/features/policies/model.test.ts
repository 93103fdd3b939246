import { describe, expect, it } from "vitest";
import type { PolicyRule } from "@/api/types";
import { changeText, chosenRules, matches, rulesIn, withStanza } from "./model";

const rule = (code: number, change: Partial<PolicyRule> = {}): PolicyRule => ({
  family: "xid",
  code,
  title: "the GPU fell off the bus",
  group: "bus",
  severity: "critical",
  remedy: "reboot_node",
  repeat: null,
  note: "",
  overridden: false,
  ...change,
});

describe("matches", () => {
  it("finds a code by its beginning and a title by its words", () => {
    expect(matches(rule(79), "79")).toBe(true);
    expect(matches(rule(179), "79")).toBe(false);
    expect(matches(rule(79), "bus fell")).toBe(true);
    expect(matches(rule(79), "memory")).toBe(false);
    expect(matches(rule(79), " ")).toBe(true);
  });
});

it("narrows to what is asked for", () => {
  const rules = [
    rule(13, { remedy: "restart_app", overridden: true }),
    rule(79),
    rule(12028, { family: "sxid" }),
  ];
  const codes = (only: "overridden" | "evicts" | "sxid") => chosenRules(rules, { only }).map((r) => r.code);
  expect(codes("overridden")).toEqual([13]);
  expect(codes("evicts")).toEqual([79, 12028]);
  expect(codes("sxid")).toEqual([12028]);
  expect(chosenRules(rules, {})).toHaveLength(3);
});

it("leaves numbers without meaning to the search", () => {
  const rules = [rule(79), rule(7, { severity: "info", remedy: "none", title: "unused" })];
  expect(chosenRules(rules, {}).map((r) => r.code)).toEqual([79]);
  expect(chosenRules(rules, { only: "all" })).toHaveLength(2);
  expect(chosenRules(rules, { q: "7" })).toHaveLength(2);
});

describe("rulesIn", () => {
  it("reads single codes, lists, ranges and what is no code", () => {
    const toml = '[xid.79]\nremedy = "inspect"\n[xid."11,25"]\n[sxid."11021-11023".says]\n[xid.unknown]\n';
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

  it("is not fooled by comments and values", () => {
    expect(rulesIn('# [xid.79]\nnote = "[xid.80]"\n').size).toBe(0);
  });
});

describe("withStanza", () => {
  it("begins as the rule stands, once", () => {
    const once = withStanza("", rule(79));
    expect(once).toContain("[xid.79]");
    expect(once).toContain('remedy = "reboot_node"');
    expect(withStanza(once, rule(79))).toBe(once);
    expect([...rulesIn(withStanza(once, rule(48)))]).toEqual(["xid.79", "xid.48"]);
  });
});

it("says how a count would change", () => {
  expect([changeText(1, 3), changeText(3, 1), changeText(2, 2)]).toEqual(["+2", "−2", "no change"]);
});
