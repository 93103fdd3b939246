import { describe, expect, it } from "vitest";
import type { LocalizationVerdict, Pair } from "@/api/types";
import {
  culpritName,
  noiseText,
  pairKey,
  pairOrder,
  roundText,
  slowPairs,
  speedOf,
  verdictText,
} from "./model";

const pair = (state: Pair["state"], bandwidth: Record<string, number> = {}): Pair => ({
  a: "a",
  b: "b",
  nics: ["", ""],
  via: "",
  state,
  bandwidth,
  note: "",
});
const verdict = (more: Partial<LocalizationVerdict>): LocalizationVerdict => ({
  culprits: [],
  good: [],
  unknown: {},
  rounds: 3,
  noise: 0.012,
  settled: true,
  ...more,
});

describe("pairs", () => {
  it("uses the speed of the largest message by number, not by text", () => {
    expect(speedOf(pair("ok", { "1024": 1, "67108864": 9, "65536": 5 }))).toBe(9);
    expect(speedOf(pair("hung"))).toBeNull();
  });

  it("shows hung pairs first, then unknown ones, then the slowest", () => {
    const order = [pair("ok", { "1": 9 }), pair("missing"), pair("ok", { "1": 2 }), pair("hung")].sort(
      pairOrder,
    );
    expect(order.map((p) => `${p.state} ${speedOf(p) ?? "-"}`)).toEqual([
      "hung -",
      "missing -",
      "ok 2",
      "ok 9",
    ]);
  });

  it("counts a missing answer as answered, but not one in progress", () => {
    expect(roundText({ number: 2, pairs: [pair("ok"), pair("missing"), pair("measuring")] })).toBe(
      "Round 2: 2 of 3 pairs answered",
    );
  });
});

describe("the verdict", () => {
  it("marks the evidence against a culprit in both directions", () => {
    const evidence = [{ a: "b", b: "a", round: 2, ratio: 0.7 }];
    const culprits = [{ evidence }] as unknown as LocalizationVerdict["culprits"];
    const slow = slowPairs(verdict({ culprits }));
    expect(slow.has(pairKey(2, { a: "a", b: "b" }))).toBe(true);
    expect(slow.has(pairKey(1, { a: "a", b: "b" }))).toBe(false);
    expect(slowPairs(null).size).toBe(0);
    expect(culpritName({ kind: "cable", name: ["leaf-1", "spine-2"] })).toBe("Cable leaf-1, spine-2");
  });

  it("never shows unknown as healthy", () => {
    expect(verdictText(verdict({ good: ["a", "b"] }))).toBe(
      "No fault found: all pairs measured the same after 3 rounds.",
    );
    expect(verdictText(verdict({ unknown: { a: "no answer" } }))).toBe(
      "No culprit named after 3 rounds; 1 node is unknown.",
    );
    expect(noiseText(verdict({ noise: null }))).toContain("unknown");
  });
});
