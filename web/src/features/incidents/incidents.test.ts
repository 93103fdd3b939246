import { describe, expect, it } from "vitest";
import type { Incident, Plan } from "@/api/types";
import { incidentDuration, lifecycleSteps, ranksText, subject } from "./lifecycle-model";
import { measuredParts, planTable, restoreLines } from "./plan-model";
import { detailPairs, offsetText, timelineRows } from "./timeline-model";

const incident: Incident = {
  id: "i",
  title: "t",
  state: "recovered",
  severity: "critical",
  opened_at: 100,
  recovering_at: null,
  recovered_at: 103,
  verified_at: null,
  closed_at: null,
  acknowledged_at: null,
  acknowledged_by: null,
  assignee: null,
  job: "demo",
  node: "n0",
  device: "host",
  ranks: [3],
  kinds: ["process_exit"],
  cause: null,
  needs_operator: false,
  summary: "",
};

describe("the life cycle of an incident", () => {
  it("measures each stage from the last one with a time", () => {
    expect(lifecycleSteps(incident).map((s) => s.after)).toEqual([null, null, 3, null, null]);
  });

  it("lasts until recovery, or until now", () => {
    expect(incidentDuration(incident, 500)).toBe(3);
    expect(incidentDuration({ ...incident, recovered_at: null }, 500)).toBe(400);
  });

  it("names its subject", () => {
    expect(subject(incident)).toBe("demo · rank 3 · n0");
    expect(ranksText([0, 1, 2, 3, 7])).toBe("ranks 0–3, 7");
    expect(ranksText([5, 4])).toBe("ranks 4, 5");
    expect(ranksText([0, 2, 4, 6, 8])).toBe("ranks 0, 2, 4, 6 … (5 ranks)");
  });
});

describe("the history", () => {
  it("is ordered by time, ties by arrival", () => {
    const entry = (time: number, kind: string) => ({ time, kind, text: "", data: {} });
    const rows = timelineRows({
      opened_at: 10,
      timeline: [entry(12, "c"), entry(10, "a"), entry(10, "b"), entry(9, "z")],
    });
    expect(rows.map((r) => r.entry.kind)).toEqual(["z", "a", "b", "c"]);
    expect(rows.map((r) => r.offset)).toEqual([-1, 0, 0, 2]);
    expect(offsetText(-0.18, (s) => `${s} s`)).toBe("−0.18 s");
    expect(offsetText(0, String)).toBe("0");
  });

  it("shows small data and omits the plan", () => {
    expect(detailPairs({ pid: 7, plan: {}, none: null, nested: { a: 1 } })).toEqual([
      ["pid", "7"],
      ["nested", '{"a":1}'],
    ]);
  });
});

describe("the plan", () => {
  const alternative = (strategy: Plan["alternatives"][number]["strategy"], seconds: number | null) => ({
    strategy,
    feasible: seconds !== null,
    reason: "",
    epoch: null,
    seconds,
    steps_lost: 0,
    cost_seconds: seconds,
    parts: (seconds === null ? {} : { regroup: seconds / 2, fence: seconds / 2 }) as Record<string, number>,
    restores: [] as Plan["alternatives"][number]["restores"],
    left_out: 0,
  });
  const plan: Plan = {
    id: "p",
    job: "demo",
    generation: 2,
    failed_ranks: [3],
    chosen: "peer_copy",
    explanation: "",
    alternatives: [
      alternative("disk_restart", 20),
      alternative("parity_rebuild", null),
      alternative("peer_copy", 2),
      alternative("local_slot", 3),
    ],
    created_at: 0,
    incident: null,
    actual_seconds: 4,
    actual_steps_lost: 0,
    actual_parts: { fence: 1, regroup: 3, total: 4 },
  };

  it("puts the chosen strategy first, then by cost, infeasible ones last", () => {
    expect(planTable(plan).rows.map((r) => r.alternative.strategy)).toEqual([
      "peer_copy",
      "local_slot",
      "disk_restart",
      "parity_rebuild",
    ]);
  });

  it("uses one scale and counts no total twice", () => {
    const table = planTable(plan);
    expect(table.scale).toBe(20);
    expect(table.phases).toEqual(["fence", "regroup"]);
    expect(table.actual?.parts).toEqual({ fence: 1, regroup: 3 });
    expect(table.accuracy).toBe(2);
  });

  it("counts the restores that are not listed", () => {
    const moved = { rank: 7, node: "n1", source: "peer_copy" as const, from_rank: 3, from_nodes: ["n0"] };
    expect(restoreLines({ ...alternative("peer_copy", 2), restores: [moved], left_out: 16_383 })).toEqual([
      "Rank 7 from a peer copy on n0",
      "16\u202f383 more are not listed",
    ]);
  });

  it("draws one part where only the total is known", () => {
    expect(measuredParts({}, 4)).toEqual({ total: 4 });
    expect(measuredParts({}, null)).toEqual({});
  });
});
