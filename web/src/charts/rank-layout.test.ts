import { describe, expect, it } from "vitest";
import { colorRange, median, newest, rankGrid, ratioToPeers } from "./rank-layout";

const place = (rank: number, dp: number, pp: number, tp = 0) => ({ rank, dp, pp, tp });

describe("rankGrid", () => {
  it("puts replicas in rows and stages in columns", () => {
    const grid = rankGrid([place(0, 0, 0), place(1, 0, 1), place(2, 1, 0), place(3, 1, 1)], {
      dp: 2,
      pp: 2,
      tp: 1,
    });
    expect(grid).toMatchObject({ rows: 2, columns: 2, stageWidth: 1 });
    expect(grid.cells.map((c) => c?.rank)).toEqual([0, 1, 2, 3]);
  });

  it("keeps the shards of a stage together", () => {
    const grid = rankGrid([place(5, 0, 1, 1)], { dp: 1, pp: 2, tp: 2 });
    expect(grid.columns).toBe(4);
    expect(grid.cells.map((c) => c?.rank ?? null)).toEqual([null, null, null, 5]);
  });

  it("leaves a hole for a missing rank, and ignores a rank out of bounds", () => {
    const grid = rankGrid([place(0, 0, 0), place(9, 7, 7)], { dp: 1, pp: 2, tp: 1 });
    expect(grid.cells.map((c) => c?.rank ?? null)).toEqual([0, null]);
  });
});

describe("comparing ranks", () => {
  it("uses the newest known value", () => {
    expect(newest([1, 2, null, null])).toEqual({ value: 2, stepsAgo: 2 });
    expect(newest([null])).toBeNull();
    expect(newest(undefined)).toBeNull();
  });

  it("compares only ranks of the same stage", () => {
    const ratios = ratioToPeers([1, 10, 1.2, 10, 1, 12], [0, 1, 0, 1, 0, 1]);
    expect(ratios[2]).toBeCloseTo(1.2);
    expect(ratios[5]).toBeCloseTo(1.2);
    expect(ratios[1]).toBeCloseTo(10 / 11);
  });

  it("has no ratio without peers or without a value", () => {
    expect(ratioToPeers([1, 2], [0, 1])).toEqual([null, null]);
    expect(ratioToPeers([null, 2], [0, 0])).toEqual([null, null]);
  });

  it("does not spread noise over the full color scale", () => {
    const range = colorRange([1, 1.01, 0.99, 1.005]);
    expect((range as [number, number])[1] - (range as [number, number])[0]).toBeGreaterThanOrEqual(0.25);
    expect(colorRange([1, 2, null])).toEqual([1, 2]);
    expect(colorRange([null])).toBeNull();
  });

  it("knows medians", () => {
    expect(median([])).toBeNull();
    expect(median([3, 1, 2])).toBe(2);
    expect(median([4, 1, 2, 3])).toBe(2.5);
  });
});
