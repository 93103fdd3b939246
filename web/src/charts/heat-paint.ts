/** Bytes to pixels: one pass over an RGBA buffer, patterns included, so that 80,000 cells redraw within a frame. */
import { cellAt, type HeatLayout } from "./heat-layout";

export const NO_DATA = 255;

export type Pattern = "solid" | "diagonal" | "cross" | "split" | "stripes" | "dots";

export interface Ink {
  /** ABGR, as a little-endian Uint32 view of canvas pixels reads it. */
  color: number;
  pattern: Pattern;
}

/** Return whether a pixel of an n×n cell is drawn. The patterns separate states without color. */
export function inked(pattern: Pattern, x: number, y: number, n: number): boolean {
  switch (pattern) {
    case "solid":
      return true;
    case "diagonal":
      return (x + y) % 4 === 0;
    case "cross": {
      if (n < 5) return true;
      const width = Math.max(1, n / 9);
      return !(Math.abs(x - y) < width || Math.abs(x + y - n + 1) < width);
    }
    case "split":
      return n < 4 || x <= y;
    case "stripes":
      return n < 4 || y % 4 < 2;
    case "dots":
      return n < 4 || x % 3 !== 1 || y % 3 !== 1;
  }
}

/** Paints every cell. `slots[i]` is the byte index of the i-th cell in drawing order; a missing byte is no data. */
export function paintHeat(
  pixels: Uint32Array,
  pixelWidth: number,
  scale: number,
  layout: HeatLayout,
  slots: ArrayLike<number>,
  values: Uint8Array,
  inks: (value: number) => Ink,
): void {
  pixels.fill(0);
  const side = Math.max(1, Math.round(layout.cell * scale));
  const pixelHeight = pixels.length / pixelWidth;
  layout.nodes.forEach((node, nodeIndex) => {
    for (let offset = 0; offset < node.count; offset += 1) {
      const slot = slots[node.first + offset] as number;
      const ink = inks(values[slot] ?? NO_DATA);
      const { x, y } = cellAt(layout, nodeIndex, offset);
      fillCell(pixels, pixelWidth, pixelHeight, Math.round(x * scale), Math.round(y * scale), side, ink);
    }
  });
}

function fillCell(
  pixels: Uint32Array,
  width: number,
  height: number,
  left: number,
  top: number,
  side: number,
  ink: Ink,
): void {
  const right = Math.min(side, width - left);
  const bottom = Math.min(side, height - top);
  for (let y = 0; y < bottom; y += 1) {
    const start = (top + y) * width + left;
    if (ink.pattern === "solid") {
      pixels.fill(ink.color, start, start + right);
      continue;
    }
    for (let x = 0; x < right; x += 1) {
      if (inked(ink.pattern, x, y, side)) pixels[start + x] = ink.color;
    }
  }
}
