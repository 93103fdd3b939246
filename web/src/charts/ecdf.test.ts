import { describe, expect, it } from "vitest";
import { apart, axisOver, beyond, place, refused, stepPath, ticks } from "./ecdf";

describe("cumulative curves", () => {
  it("has an axis around all values, also around a single one", () => {
    expect(axisOver([])).toBeNull();
    expect(axisOver([Number.NaN])).toBeNull();
    const one = axisOver([5]);
    expect(one && one.from < 5 && one.to > 5).toBe(true);
    expect(axisOver([0, 10], 0.1)).toEqual({ from: -1, to: 11 });
  });

  it("steps by an equal share at every value, from 0 to 1", () => {
    const axis = { from: 0, to: 10 };
    expect(stepPath([2, 6], axis, 100, 50)).toBe("M0 50.0H20.0V25.0H60.0V0.0H100");
    expect(stepPath([], axis, 100, 50)).toBe("");
  });

  it("draws tied values in one place", () => {
    expect(stepPath([5, 5], { from: 0, to: 10 }, 100, 100)).toBe("M0 100.0H50.0V50.0H50.0V0.0H100");
  });

  it("places round ticks inside the axis", () => {
    expect(ticks({ from: 0.94, to: 1.23 }, 4)).toEqual([1, 1.1, 1.2000000000000002]);
    expect(ticks({ from: 1, to: 1 }, 4)).toEqual([]);
  });

  it("rejects values beyond a limit, but not the limit itself", () => {
    const axis = { from: 0, to: 10 };
    expect(refused(2, null, axis)).toEqual([[0, 0.2]]);
    expect(refused(null, 8, axis)).toEqual([[0.8, 1]]);
    expect(refused(null, 20, axis)).toEqual([]);
    expect(refused(null, null, axis)).toEqual([]);
    expect([beyond(2, 2, 8), beyond(1.9, 2, 8), beyond(9, null, 8), beyond(9, 2, null)]).toEqual([
      false,
      true,
      true,
      false,
    ]);
    expect(place(5, axis)).toBe(0.5);
  });

  it("draws one mark instead of several that would overlap", () => {
    expect(apart([5, 1, 1.5, 9, 1], (v) => v, 2)).toEqual([1, 5, 9]);
    expect(apart([], (v) => v, 2)).toEqual([]);
  });
});
