import { describe, expect, it } from "vitest";
import { niceTicks, placeSpans } from "./strip";

describe("placeSpans", () => {
  it("cuts spans to the window and drops those outside", () => {
    const placed = placeSpans(
      [
        { id: "before", from: 0, to: 50 },
        { id: "into", from: 50, to: 150 },
        { id: "open", from: 190, to: null },
        { id: "after", from: 300, to: 310 },
      ],
      100,
      200,
    );
    expect(placed.map((p) => p.span.id)).toEqual(["into", "open"]);
    expect(placed[0]).toMatchObject({ left: 0, width: 0.5, lane: 0 });
    expect(placed[1]?.left).toBeCloseTo(0.9);
    expect((placed[1]?.left ?? 0) + (placed[1]?.width ?? 0)).toBeCloseTo(1);
  });

  it("keeps overlapping spans in different lanes and reuses lanes", () => {
    const placed = placeSpans(
      [
        { id: "a", from: 0, to: 60 },
        { id: "b", from: 30, to: 40 },
        { id: "c", from: 70, to: 80 },
      ],
      0,
      100,
    );
    expect(placed.map((p) => p.lane)).toEqual([0, 1, 0]);
  });

  it("shows the shortest span, inside the window, even at its very end", () => {
    const [last] = placeSpans([{ id: "x", from: 100, to: 100 }], 0, 100, 0.01);
    expect(last?.width).toBeCloseTo(0.01);
    expect((last?.left ?? 2) + (last?.width ?? 2)).toBeLessThanOrEqual(1.0001);
  });

  it("has nothing to place in an empty window", () => {
    expect(placeSpans([{ id: "a", from: 0, to: 1 }], 5, 5)).toEqual([]);
  });
});

describe("niceTicks", () => {
  it("returns at most the requested number of round times", () => {
    const ticks = niceTicks(1003, 1003 + 86_400, 8);
    expect(ticks.length).toBeLessThanOrEqual(8);
    for (const tick of ticks) expect(tick % 10_800).toBe(0);
  });

  it("is round in local time", () => {
    for (const tick of niceTicks(0, 86_400, 8, 1800)) expect((tick + 1800) % 10_800).toBe(0);
  });
});
