import { describe, expect, it } from "vitest";
import type { TopologyRank } from "@/api/types";
import { CLEAR } from "@/charts/matrix-paint";
import { cellColor, cellText, signalPicture } from "./signal-picture";

const N = 512;
const place = (rank: number): TopologyRank => ({
  rank,
  dp: rank >> 1,
  pp: rank & 1,
  tp: 0,
  node: `n${rank >> 3}`,
  device: null,
  pid: null,
  state: "running",
});
const topology = {
  dp: N / 2,
  pp: 2,
  tp: 1,
  world_size: N,
  ranks: Array.from({ length: N }, (_, r) => place(r)),
};
const steps = Array.from({ length: 100 }, (_, k) => 1000 + k);
const data = {
  steps,
  ranks: topology.ranks.map((p) => p.rank),
  signals: {
    compute_time_seconds: topology.ranks.map(({ rank, pp }) =>
      steps.map((_, k): number | null => (rank === 9 ? null : (1 + pp) * (rank === 77 && k > 50 ? 1.2 : 1))),
    ),
  },
};

describe("the map of ranks over steps", () => {
  const small = signalPicture(data, "compute_time_seconds", topology, { width: 320, maxHeight: 440 });

  it("shares rows by node if the ranks do not fit, and shows the straggler", () => {
    expect(small.rowBins).toHaveLength(64);
    expect(small.standouts).toEqual([{ rank: 77, deviation: expect.closeTo(0.2, 2) }]);
    expect(small.rankAt(9, 80)).toBe(77);
    expect(cellText(small, { row: 9, column: 80 })).toBe(
      "rank 77 on n9, step 1080: 2.40 s, 20% above its peers (largest deviation of 8 ranks)",
    );
  });

  it("leaves a rank without reports clear", () => {
    const wide = signalPicture(data, "compute_time_seconds", topology, { width: 1000, maxHeight: 2000 });
    expect(wide.rowBins).toHaveLength(N);
    expect(cellColor(wide, true)(9, 3)).toBe(CLEAR);
    expect(cellColor(wide, true)(77, 80)).not.toBe(cellColor(wide, true)(77, 10));
    expect(cellText(wide, { row: 9, column: 3 })).toBe("rank 9 on n1, step 1003: unknown");
  });

  it("detects a signal without reports", () => {
    const none = signalPicture(data, "gc_seconds", topology, { width: 320, maxHeight: 440 });
    expect(none).toMatchObject({ known: 0, compared: 0 });
    expect(cellText(none, { row: 400, column: 0 })).toBe("");
  });
});
