import { describe, expect, it } from "vitest";
import { cellAt, type HeatNode, layoutHeat } from "./heat-layout";
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

describe("frames", () => {
  const nodes: HeatNode[] = Array.from({ length: 4 }, (_, i) => ({ name: `n${i}`, first: i * 4, count: 4 }));
  const slots = Uint32Array.from({ length: 16 }, (_, i) => i);
  const frame = 0xffff0000;
  const draw = (values: Uint8Array, framed: number[]) => {
    const layout = layoutHeat(nodes, 400, 300);
    const pixels = new Uint32Array(layout.width * layout.height);
    paintHeat(pixels, layout.width, 1, layout, slots, values, inks, {
      has: (index) => framed.includes(index),
      color: frame,
    });
    return { layout, pixels };
  };

  it("surround the nodes that have one and change no cell", () => {
    const values = Uint8Array.from([...slots.map((i) => (i % 2 ? NO_DATA : i))]);
    const plain = draw(values, []).pixels;
    const { layout, pixels } = draw(values, [1]);
    expect(plain.includes(frame)).toBe(false);
    const { x, y } = cellAt(layout, 1, 0);
    pixels.forEach((pixel, at) => {
      const [px, py] = [at % layout.width, Math.floor(at / layout.width)];
      const near =
        px >= x - 2 && px < x + layout.blockWidth + 2 && py >= y - 2 && py < y + layout.blockHeight + 2;
      if (pixel === frame) expect(near && plain[at] === 0).toBe(true);
      else expect(pixel).toBe(plain[at]);
    });
    expect(pixels.filter((pixel) => pixel === frame).length).toBeGreaterThan(2 * layout.blockWidth);
  });
});

describe("10,000 nodes with eight GPUs", () => {
  it("are painted within a frame of the screen", () => {
    const nodes: HeatNode[] = Array.from({ length: 10_000 }, (_, i) => ({
      name: `n${i}`,
      first: i * 8,
      count: 8,
      rack: `r${i >> 5}`,
    }));
    const layout = layoutHeat(nodes, 1376, 460);
    const slots = Uint32Array.from({ length: 80_000 }, (_, i) => i);
    const values = Uint8Array.from(slots, (i) => i % 256);
    const pixels = new Uint32Array(layout.width * layout.height);
    const times = Array.from({ length: 30 }, () => {
      const start = performance.now();
      paintHeat(pixels, layout.width, 1, layout, slots, values, inks, {
        has: (index) => index % 10 === 0,
        color: 1,
      });
      return performance.now() - start;
    });
    // The fastest of many: others compute on this computer too.
    expect(Math.min(...times)).toBeLessThan(20);
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
