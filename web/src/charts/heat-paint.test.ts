import { describe, expect, it } from "vitest";
import { type HeatNode, layoutHeat } from "./heat-layout";
import { type Ink, inked, NO_DATA, type Pattern, paintHeat } from "./heat-paint";

const inks = (value: number): Ink =>
  value === NO_DATA
    ? { color: 0xff888888, pattern: "diagonal" }
    : { color: 0xff000000 + value, pattern: "solid" };

function paint(nodes: HeatNode[], values: Uint8Array, scale = 1) {
  const layout = layoutHeat(nodes, 400, 300);
  const width = Math.round(layout.width * scale);
  const pixels = new Uint32Array(width * Math.round(layout.height * scale));
  const slots = Uint32Array.from({ length: nodes.reduce((n, node) => n + node.count, 0) }, (_, i) => i);
  paintHeat(pixels, width, scale, layout, slots, values, inks);
  return { layout, pixels, width };
}

describe("paintHeat", () => {
  const nodes: HeatNode[] = [
    { name: "a", first: 0, count: 4 },
    { name: "b", first: 4, count: 4 },
  ];

  it("fills a known cell, and an unknown one only in part", () => {
    const { layout, pixels, width } = paint(nodes, Uint8Array.from([7, NO_DATA, 1, 2, 3, 4, 5, 6]));
    const area = layout.cell * layout.cell;
    expect(pixels.filter((p) => p === 0xff000007)).toHaveLength(area);
    const unknown = pixels.filter((p) => p === 0xff888888).length;
    expect(unknown).toBeGreaterThan(0);
    expect(unknown).toBeLessThan(area / 2);
    expect(pixels[layout.label * width]).toBe(0xff000007);
  });

  it("reads a missing byte as no data, not as zero", () => {
    const { pixels } = paint(nodes, Uint8Array.from([1]));
    expect(pixels.filter((p) => p === 0xff000000)).toHaveLength(0);
    expect(pixels.filter((p) => p === 0xff888888).length).toBeGreaterThan(0);
  });

  it("clears what was there and stays in its buffer at any pixel ratio", () => {
    for (const scale of [1, 1.25, 2, 3]) expect(() => paint(nodes, new Uint8Array(8), scale)).not.toThrow();
  });
});

describe("patterns", () => {
  const patterns: Pattern[] = ["solid", "diagonal", "cross", "split", "stripes", "dots"];
  const picture = (pattern: Pattern, n: number) =>
    Array.from({ length: n * n }, (_, i) => (inked(pattern, i % n, Math.floor(i / n), n) ? "#" : ".")).join(
      "",
    );

  it("differ from each other at a size where shapes can be seen", () => {
    expect(new Set(patterns.map((p) => picture(p, 12))).size).toBe(patterns.length);
  });

  it("always draw some pixels", () => {
    for (const pattern of patterns) for (const n of [2, 3, 5, 34]) expect(picture(pattern, n)).toContain("#");
  });
});
