import { describe, expect, it } from "vitest";
import {
  blocks,
  byNode,
  delayMatrix,
  pairsOf,
  secondsScale,
  shareOf,
  slowEnds,
  slowest,
} from "./delays-model";
import type { JobPairs } from "./types";

/** A ring of n ranks, 8 per node, that also send to the opposite rank; transfers of `late` take three times as long. */
function ring(n: number, late: number): JobPairs {
  const table = () => Array.from({ length: n }, () => Array.from({ length: n }, (): number | null => null));
  const [seconds, bytes] = [table(), table()];
  for (let r = 0; r < n; r += 1) {
    for (const [to, size, took] of [
      [(r + 1) % n, 1e6, 0.002],
      [(r + n / 2) % n, 64e6, 0.05],
    ] as const) {
      (seconds[r] as (number | null)[])[to] = took * (r === late ? 3 : 1 + r / 1e4);
      (bytes[r] as (number | null)[])[to] = size;
    }
  }
  return { first: 1, last: 20, ranks: Array.from({ length: n }, (_, r) => r), seconds, bytes };
}
const nodes = (n: number) => new Map(Array.from({ length: n }, (_, r) => [r, `node${r >> 3}`]));

describe("pairs", () => {
  it("are compared with pairs that transfer as much", () => {
    const pairs = pairsOf(ring(32, 5));
    expect(pairs).toHaveLength(64);
    expect(slowest(pairs, 2).map((p) => p.source)).toEqual([5, 5]);
    expect(slowest(pairs, 1)[0]?.alike).toBeCloseTo(3, 1);
    expect(pairs.filter((p) => p.source !== 5).every((p) => Math.abs(p.alike - 1) < 0.1)).toBe(true);
  });

  it("name a sender if all its transfers are slow", () => {
    expect(slowEnds(pairsOf(ring(32, 5)))).toEqual([{ rank: 5, as: "sender", slow: 2, of: 2 }]);
    expect(slowEnds(pairsOf(ring(32, -1)))).toEqual([]);
  });
});

describe("the matrix", () => {
  it("is ordered by node for any order of ranks", () => {
    const nodeOf = new Map([0, 1, 2, 3].map((r) => [r, r % 2 ? "b" : "a"]));
    expect(byNode([0, 1, 2, 3], nodeOf)).toEqual({ index: [0, 2, 1, 3], nodes: ["a", "a", "b", "b"] });
    expect(byNode([0], new Map()).nodes).toEqual(["?"]);
  });

  it.each([4, 64, 256])("shows the slow pair at %d ranks", (n) => {
    const given = ring(n, 3);
    const pairs = pairsOf(given);
    const order = byNode(given.ranks, nodes(n));
    for (const grain of ["rank", "node"] as const) {
      const matrix = delayMatrix(pairs, given.ranks, order, blocks(order, grain), "alike");
      const worst = matrix.cells.reduce(
        (a, b) => ((b?.worst.alike ?? 0) > (a?.worst.alike ?? 0) ? b : a),
        null,
      );
      expect(worst?.worst.source).toBe(3);
      if (grain === "node") expect(matrix.bins.length).toBeLessThanOrEqual(256);
    }
  });

  it("counts a block's pairs", () => {
    const given = ring(16, -1);
    const order = byNode(given.ranks, nodes(16));
    const matrix = delayMatrix(pairsOf(given), given.ranks, order, blocks(order, "node"), "seconds");
    expect(matrix.cells.map((cell) => cell?.pairs)).toEqual([7, 9, 9, 7]);
  });
});

describe("the scale", () => {
  it("is logarithmic and never narrower than a quarter", () => {
    expect(secondsScale([])).toBeNull();
    const scale = secondsScale([{ source: 0, destination: 1, seconds: 1, bytes: null, alike: 1 }]);
    expect(scale).toEqual({ low: 1, high: 1.25 });
    expect(shareOf(10, { low: 1, high: 100 })).toBeCloseTo(0.5);
    expect(shareOf(0.5, { low: 1, high: 100 })).toBe(0);
  });
});
