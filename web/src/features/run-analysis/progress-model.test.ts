import { describe, expect, it } from "vitest";
import type { TopologyRank } from "@/api/types";
import { kindsInUse, laggardText, rankRows, shareOfLimit, stateSentence } from "./progress-model";
import type { JobProgress, RankProgress } from "./types";

const place = (rank: number): TopologyRank => ({
  rank,
  dp: rank >> 1,
  pp: rank & 1,
  tp: 0,
  node: "n",
  device: null,
  pid: null,
  state: "running",
});
const topology = { dp: 2, pp: 2, tp: 1, world_size: 4, ranks: [0, 1, 2, 3].map(place) };
const rank = (n: number, dp: number, pp: number): RankProgress => ({
  rank: n,
  node: "n",
  step: 10,
  phase: 0,
  in_collective_seconds: 4,
  age_seconds: 0.4,
  enqueued: { world: 3, dp, pp, tp: 0 },
  completed: { world: 3, dp: dp - 1, pp: pp - 1, tp: 0 },
});
const progress: JobProgress = {
  time: 1,
  state: "hung",
  quiet_seconds: 12,
  limit_seconds: 9,
  phase: 0,
  omitted: 0,
  kinds: ["world", "dp", "pp", "tp"],
  ranks: [rank(0, 8, 20), rank(1, 8, 20), rank(2, 7, 20), rank(3, 8, 19)],
};

describe("ranks in progress", () => {
  it("show only kinds of groups in use", () => {
    expect(kindsInUse(progress)).toEqual(["world", "dp", "pp"]);
  });

  it("are compared within their group, lagging ranks first", () => {
    const rows = rankRows(progress, topology);
    expect(rows.map((row) => row.rank)).toEqual([3, 0, 1, 2]);
    expect(rows[0]?.behind).toEqual({ world: 0, dp: 0, pp: 1 });
    expect(rows[3]?.behind).toEqual({ world: 0, dp: 1, pp: 0 });
    expect(rows.map((row) => row.lags)).toEqual([true, false, false, false]);
  });

  it("name the lagging rank of the innermost group", () => {
    const rows = rankRows(progress, topology);
    expect(laggardText(rows, kindsInUse(progress))).toContain(
      "Rank 3 is behind the others in its pipeline group",
    );
  });

  it("do not lag while the job progresses, since reports arrive at different times", () => {
    const rows = rankRows({ ...progress, state: "moving" }, topology);
    expect(rows.some((row) => row.lags)).toBe(false);
    expect(laggardText(rows, ["world"])).toBe("");
  });

  it("have no lag if the group is unknown", () => {
    const odd = {
      ...progress,
      kinds: ["ep"],
      ranks: progress.ranks.map((r) => ({ ...r, enqueued: { ep: r.rank } })),
    };
    expect(rankRows(odd, topology)[0]?.behind).toEqual({ ep: null });
  });
});

describe("the sentence", () => {
  it("contains both numbers", () => {
    expect(stateSentence({ ...progress, state: "moving", quiet_seconds: 0.4 })).toBe(
      "400 ms without a completed collective; the hang timeout is 9.00 s.",
    );
    expect(stateSentence(progress)).toContain("12.0 s");
    expect(stateSentence({ ...progress, state: "masked", phase: 4 })).toContain("In checkpoint");
  });

  it("does not claim progress without reports", () => {
    expect(stateSentence({ ...progress, state: "unknown", ranks: [] })).toContain("No rank reports");
    const silent = { ...progress, ranks: progress.ranks.map((r) => ({ ...r, age_seconds: 40 + r.rank })) };
    expect(stateSentence({ ...silent, state: "unknown" })).toContain("No rank has reported for 40 s");
    expect(stateSentence({ ...progress, state: "moving", limit_seconds: null })).toContain(
      "no timeout is learned",
    );
  });

  it("has text for an unknown number", () => {
    const blind = { ...progress, quiet_seconds: null, limit_seconds: null };
    for (const state of ["moving", "waiting", "masked", "hung", "unknown"] as const)
      expect(stateSentence({ ...blind, state })).not.toContain("–");
  });

  it("has a ratio of the timeout", () => {
    expect(shareOfLimit(progress)).toBe(1);
    expect(shareOfLimit({ ...progress, limit_seconds: null })).toBeNull();
    expect(shareOfLimit({ ...progress, quiet_seconds: 4.5 })).toBe(0.5);
  });
});
