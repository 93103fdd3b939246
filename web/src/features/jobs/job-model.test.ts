import { describe, expect, it } from "vitest";
import type { Job, Steps } from "@/api/types";
import { protectionFacts, rankFacts, rankLines, rankValues } from "./job-model";

const rank = (n: number) => ({
  rank: n,
  dp: n >> 1,
  pp: n & 1,
  tp: 0,
  node: "n",
  device: null,
  pid: null,
  state: "running" as const,
});
const job: Job = {
  id: "j",
  name: "j",
  state: "running",
  generation: 1,
  command: "",
  last_step: 3,
  steps_total: 10,
  started_at: 0,
  finished_at: null,
  last_seen_at: 0,
  open_incidents: 0,
  recoveries: 0,
  effective_ratio: null,
  topology: { dp: 2, pp: 2, tp: 1, world_size: 4, ranks: [0, 1, 2, 3].map(rank) },
  protection: { slots: 2, parity_every: null, parity_group: null, disk_every: 1, state_bytes: [1, 2, 3, 4] },
};
const steps: Steps = {
  steps: [1, 2, 3],
  ranks: [0, 1, 2, 3],
  loss: [null, null, null],
  step_time_seconds: [
    [1, 1, 1],
    [1, 1, 1],
    [1, 1, null],
    [1, 1, 1],
  ],
  compute_time_seconds: [
    [0.5, 0.5, 0.5],
    [0.8, 0.8, 0.8],
    [0.5, 0.6, 0.75],
    [null, null, null],
  ],
};

describe("ranks", () => {
  it("have their newest value, and none where nothing was measured", () => {
    expect([...rankValues(job, steps, "compute").values()]).toEqual([0.5, 0.8, 0.75, null]);
    expect(rankValues(job, steps, "step").get(2)).toBe(1);
    expect(rankValues(job, undefined, "step").size).toBe(0);
  });

  it("are compared within their stage", () => {
    const ratios = rankValues(job, steps, "peers");
    expect(ratios.get(2)).toBeCloseTo(1.5);
    expect(ratios.get(1)).toBeNull();
    expect(rankFacts(job, steps, 2)).toMatchObject({ compute: 0.75, typicalCompute: 0.6 });
  });

  it("are one line each while they can be told apart, else the spread and the chosen one", () => {
    expect(
      rankLines(steps, "compute", 2)
        .filter((l) => l.focus)
        .map((l) => l.label),
    ).toEqual(["rank 2"]);
    const ranks = Array.from({ length: 64 }, (_, i) => i);
    const many = { ...steps, ranks, compute_time_seconds: ranks.map((r) => [r, null, r]) };
    const lines = rankLines(many, "compute", 5);
    expect(lines.map((l) => l.label)).toEqual(["median, least and most", "rank 5"]);
    expect(lines[0]).toMatchObject({ values: [31.5, null, 31.5], low: [0, null, 0], high: [63, null, 63] });
  });
});

it("says what would survive in words", () => {
  const text = Object.fromEntries(protectionFacts(job).map((f) => [f.name, f.value]));
  expect(text["Local memory"]).toContain("2 snapshot slots");
  expect(text.Parity).toContain("off");
  expect(text.Disk).toBe("every step");
});
