import { describe, expect, it } from "vitest";
import { divergingColor, inkOn, luminance, pack, scaleColor } from "./color";

describe("the scale", () => {
  it.each([true, false])("increases evenly away from the background (dark: %s)", (dark) => {
    const steps = Array.from({ length: 21 }, (_, i) => luminance(scaleColor(i / 20, dark)));
    for (let i = 1; i < steps.length; i += 1) {
      const change = (steps[i] as number) - (steps[i - 1] as number);
      expect(dark ? change : -change).toBeGreaterThan(0);
    }
  });

  it("clamps", () => {
    expect(scaleColor(-1, true)).toEqual(scaleColor(0, true));
    expect(scaleColor(7, false)).toEqual(scaleColor(1, false));
  });

  it("always leaves text at AA contrast", () => {
    for (const dark of [true, false]) {
      for (let i = 0; i <= 50; i += 1) {
        const ground = scaleColor(i / 50, dark);
        const text = inkOn(ground) === "#ffffff" ? 1 : 0;
        const [hi, lo] = [Math.max(text, luminance(ground)), Math.min(text, luminance(ground))];
        expect((hi + 0.05) / (lo + 0.05)).toBeGreaterThanOrEqual(4.5);
      }
    }
  });
});

it("packs as canvas pixels read it", () => {
  expect(pack([1, 2, 3])).toBe(0xff030201);
});

describe("the diverging scale", () => {
  it.each([true, false])("stands out more with the deviation, on both sides (dark: %s)", (dark) => {
    for (const sign of [1, -1]) {
      const steps = Array.from({ length: 11 }, (_, i) => luminance(divergingColor((sign * i) / 10, dark)));
      for (let i = 1; i < steps.length; i += 1) {
        const change = (steps[i] as number) - (steps[i - 1] as number);
        expect(dark ? change : -change).toBeGreaterThan(0);
      }
    }
  });

  it("separates above from below without red and green, and clamps", () => {
    const [above, below] = [divergingColor(1, true), divergingColor(-1, true)];
    expect(above[0] - above[2]).toBeGreaterThan(100);
    expect(below[2] - below[0]).toBeGreaterThan(100);
    expect(divergingColor(9, false)).toEqual(divergingColor(1, false));
  });
});
