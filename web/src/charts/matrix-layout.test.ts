import { describe, expect, it } from "vitest";
import {
  binsFor,
  breaks,
  evenBins,
  labeledIndices,
  layoutMatrix,
  moved,
  placeAt,
  runs,
} from "./matrix-layout";

describe("layoutMatrix", () => {
  it("fills the width, and keeps rows to a line's height", () => {
    const layout = layoutMatrix(4, 400, { width: 1000, maxHeight: 500, square: false });
    expect(layout).toMatchObject({ cellWidth: 2.5, cellHeight: 22, width: 1000, height: 88 });
  });

  it.each([4, 64, 512, 2048])("fits %d × %d squares", (n) => {
    const layout = layoutMatrix(n, n, { width: 900, maxHeight: 560, square: true });
    expect(layout.cellWidth).toBe(layout.cellHeight);
    expect(layout.width).toBeLessThanOrEqual(900);
    expect(layout.height).toBeLessThanOrEqual(560.001);
  });
});

describe("placeAt", () => {
  const layout = layoutMatrix(3, 5, { width: 100, maxHeight: 60, square: false });
  it("finds every cell at its middle and nothing outside", () => {
    for (let row = 0; row < 3; row += 1)
      for (let column = 0; column < 5; column += 1)
        expect(placeAt(layout, (column + 0.5) * layout.cellWidth, (row + 0.5) * layout.cellHeight)).toEqual({
          row,
          column,
        });
    expect(placeAt(layout, -1, 5)).toBeNull();
    expect(placeAt(layout, 101, 5)).toBeNull();
    expect(placeAt(layout, 5, 61)).toBeNull();
  });
});

describe("keys", () => {
  const size = { rows: 3, columns: 5 };
  it("start at the corner, move, and stop at the edge", () => {
    expect(moved(size, null, "ArrowDown")).toEqual({ row: 0, column: 0 });
    expect(moved(size, { row: 1, column: 1 }, "l")).toEqual({ row: 1, column: 2 });
    expect(moved(size, { row: 2, column: 4 }, "ArrowRight")).toEqual({ row: 2, column: 4 });
    expect(moved(size, { row: 0, column: 2 }, "PageDown")).toEqual({ row: 2, column: 2 });
    expect(moved(size, { row: 1, column: 2 }, "End")).toEqual({ row: 1, column: 4 });
    expect(moved(size, { row: 1, column: 2 }, "Home")).toEqual({ row: 1, column: 0 });
  });
  it("ignore other keys", () => {
    expect(moved(size, { row: 1, column: 1 }, "Enter")).toBeNull();
  });
});

describe("labels and bins", () => {
  it("label as many as fit", () => {
    expect(labeledIndices(8, 20, 14)).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
    expect(labeledIndices(8, 5, 14)).toEqual([0, 4]);
    expect(labeledIndices(0, 5, 14)).toEqual([]);
  });
  it("cover everything once", () => {
    for (const [n, most] of [
      [400, 280],
      [7, 3],
      [1, 10],
      [2048, 260],
    ] as const) {
      const bins = evenBins(n, most);
      expect(bins.length).toBeLessThanOrEqual(most);
      expect(bins[0]?.[0]).toBe(0);
      expect(bins.at(-1)?.[1]).toBe(n);
      bins.forEach((bin, i) => {
        if (i > 0) expect(bin[0]).toBe(bins[i - 1]?.[1]);
      });
    }
    expect(evenBins(0, 10)).toEqual([]);
  });
  it("have a line where a node ends, unless each row is a node or the lines would be too close", () => {
    const single = [0, 1, 2, 3].map((i) => [i, i + 1] as const);
    expect(breaks(["a", "a", "b", "b"], single, 10)).toEqual([2]);
    expect(breaks(["a", "a", "b", "b"], single, 2)).toEqual([]);
    expect(breaks(["a", "b", "c", "d"], single, 10)).toEqual([]);
    expect(breaks(["a", "a", "a", "a"], single, 10)).toEqual([]);
  });
  it("keep a node's ranks together when there are too many rows", () => {
    const nodes = Array.from({ length: 64 }, (_, i) => `node${i >> 3}`);
    expect(runs(nodes)).toHaveLength(8);
    expect(binsFor(nodes, 100)).toHaveLength(64);
    expect(binsFor(nodes, 20)).toHaveLength(8);
    expect(binsFor(nodes, 4)).toEqual([
      [0, 16],
      [16, 32],
      [32, 48],
      [48, 64],
    ]);
  });
});
