import { describe, expect, it } from "vitest";
import type { Finding, FleetEvent } from "@/api/types";
import { eventText } from "@/features/events/event-text";
import { causeLabel, causeNames, causes, rankedFindings } from "./cause";
import { asText, dumpsOf, stackDump } from "./stacks-model";

const event = (time: number, rank: number, data: Record<string, unknown>): FleetEvent => ({
  id: `${time}-${rank}`,
  time,
  kind: "stack_dump",
  node: "n0",
  device: null,
  job: "j",
  rank,
  generation: 1,
  data,
  received_at: time,
});
const stacks = [{ thread: "MainThread", frames: ["wait (c10d.py:9)", "step (train.py:40)"] }];

describe("stack dumps", () => {
  it("are those of the incident's history, suspects first, with the data of their events", () => {
    const entry = (time: number, data: Record<string, unknown>, kind = "stack_dump") => ({
      time,
      kind,
      text: "",
      data,
    });
    const timeline = [
      entry(10, { event: "10-1", rank: 1, stacks }),
      entry(11, { event: "11-3", rank: 3, node: "n0", stacks }),
      entry(12, {}, "finding"),
    ];
    expect(dumpsOf({ timeline }, []).map((d) => [d.rank, d.suspect])).toEqual([
      [1, false],
      [3, false],
    ]);
    const events = [event(11, 3, { stacks, suspect: true, process: "stopped" }), event(9, 7, { stacks })];
    expect(dumpsOf({ timeline }, events).map((d) => [d.rank, d.process])).toEqual([
      [3, "stopped"],
      [1, ""],
    ]);
  });

  it("accept data of any shape", () => {
    const of = (data: Record<string, unknown>) => stackDump("x", event(1, 0, data)).stacks;
    expect(of({ stacks: "no" })).toEqual([]);
    expect(of({ stacks: [null, 3, { frames: ["a", 7] }] })).toEqual([{ thread: "a thread", frames: ["a"] }]);
  });

  it("are copied as plain text, innermost frame first", () => {
    const dump = stackDump("x", event(1, 3, { stacks, reason: "hung" }));
    expect(asText(dump)).toBe("rank 3 on n0: hung\n\nMainThread\n  wait (c10d.py:9)\n  step (train.py:40)");
  });

  it("are one line in a history", () => {
    expect(eventText(event(1, 3, { stacks, tool: "py-spy", reason: "comm_hang" }))).toBe(
      "Stacks of 1 thread by py-spy: in wait (c10d.py:9)",
    );
    expect(eventText(event(1, 3, { stacks: [], problem: "py-spy is not installed" }))).toBe(
      "No stacks: py-spy is not installed",
    );
  });
});

describe("causes", () => {
  it("all have labels", () => {
    for (const name of causeNames) expect(causes[name].label).not.toContain("_");
    expect(causeLabel("new_cause")).toEqual({ label: "new cause", about: "" });
  });

  it("order findings by the service's ranking of kinds", () => {
    const finding = (kind: Finding["kind"], time: number, active = true, severity = "warning") =>
      ({ id: `${kind}${time}`, kind, time, active, severity }) as Finding;
    const list = [
      finding("straggler", 1),
      finding("thermal_throttle", 5, false),
      finding("thermal_throttle", 9),
      finding("thermal_throttle", 8, true, "critical"),
      finding("xid", 0),
    ];
    expect(rankedFindings({ kinds: ["thermal_throttle", "straggler"] }, list).map((f) => f.id)).toEqual([
      "thermal_throttle8",
      "thermal_throttle9",
      "thermal_throttle5",
      "straggler1",
      "xid0",
    ]);
  });
});
