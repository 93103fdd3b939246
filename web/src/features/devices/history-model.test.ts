import { describe, expect, it } from "vitest";
import type { HistoryEntry } from "@/api/types";
import { byDay, chosenEntries, entryLook, entryTitle, topicCounts } from "./history-model";
import type { Topic } from "./search";

const entry = (kind: Topic, change: Partial<HistoryEntry> = {}): HistoryEntry => ({
  kind,
  time: 1_000_000,
  node: "a",
  severity: null,
  title: "",
  text: "",
  ref: null,
  ...change,
});

describe("filters", () => {
  const entries = [entry("finding"), entry("finding", { node: "b" }), entry("move")];
  it("are filtered by topic and by node", () => {
    expect(chosenEntries(entries, { show: "finding" })).toHaveLength(2);
    expect(chosenEntries(entries, { show: "finding", node: "b" })).toHaveLength(1);
    expect(chosenEntries(entries, {})).toHaveLength(3);
  });
  it("count entries by topic", () => {
    expect([...topicCounts(entries)]).toEqual([
      ["finding", 2],
      ["move", 1],
    ]);
  });
});

it("has a tone by severity, or by verdict", () => {
  expect(entryLook(entry("finding", { severity: "critical" })).tone).toBe("quarantined");
  expect(entryLook(entry("verdict", { title: "Suite deep: pass" })).tone).toBe("healthy");
  expect(entryLook(entry("verdict", { title: "?" })).tone).toBe("unknown");
});

it("groups days in the order of the entries", () => {
  const days = byDay([
    entry("move", { time: 200_000 }),
    entry("event", { time: 199_999 }),
    entry("event", { time: 0 }),
  ]);
  expect(days.map((day) => day.entries.length)).toEqual([2, 1]);
});

it("formats kinds and keeps names", () => {
  expect(entryTitle(entry("finding", { title: "ecc_uncorrectable" }))).toBe("ECC uncorrectable");
  expect(entryTitle(entry("event", { title: "xid 79" }))).toBe("XID 79");
  expect(entryTitle(entry("move", { title: "moved from gpu_a to gpu_b" }))).toBe("Moved from gpu_a to gpu_b");
  expect(entryTitle(entry("verdict"))).toBe("Verdict");
});
