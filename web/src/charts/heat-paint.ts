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

/** Nodes with a frame. */
export interface Frames {
  has: (nodeIndex: number) => boolean;
  color: number;
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
  frames?: Frames,
): void {
  pixels.fill(0);
  const side = Math.max(1, Math.round(layout.cell * scale));
  const stamps: Uint32Array[] = []; // by value: patterns are drawn once and not in each of 80,000 cells
  const pixelHeight = pixels.length / pixelWidth;
  layout.nodes.forEach((node, nodeIndex) => {
    if (frames?.has(nodeIndex)) frameNode(pixels, pixelWidth, scale, layout, nodeIndex, frames.color);
    for (let offset = 0; offset < node.count; offset += 1) {
      const slot = slots[node.first + offset] as number;
      const value = values[slot] ?? NO_DATA;
      stamps[value] ??= stampOf(inks(value), side);
      const { x, y } = cellAt(layout, nodeIndex, offset);
      fillCell(
        pixels,
        pixelWidth,
        pixelHeight,
        Math.round(x * scale),
        Math.round(y * scale),
        side,
        stamps[value],
      );
    }
  });
}

/** The pixels of a cell with this ink. */
function stampOf(ink: Ink, side: number): Uint32Array {
  return Uint32Array.from({ length: side * side }, (_, at) =>
    inked(ink.pattern, at % side, Math.floor(at / side), side) ? ink.color : 0,
  );
}

function fillCell(
  pixels: Uint32Array,
  width: number,
  height: number,
  left: number,
  top: number,
  side: number,
  stamp: Uint32Array,
): void {
  const right = Math.min(side, width - left);
  const bottom = Math.min(side, height - top);
  for (let y = 0; y < bottom; y += 1) {
    const start = (top + y) * width + left;
    const from = y * side;
    for (let x = 0; x < right; x += 1) pixels[start + x] = stamp[from + x] as number;
  }
}

/** Fill the block of a node and the gap around it; the cells are painted over it. */
function frameNode(
  pixels: Uint32Array,
  width: number,
  scale: number,
  layout: HeatLayout,
  nodeIndex: number,
  color: number,
): void {
  const { x, y } = cellAt(layout, nodeIndex, 0);
  const room = Math.min(2, Math.max(1, (layout.stepX - layout.blockWidth) >> 1));
  const [left, right] = [Math.max(0, x - room), x + layout.blockWidth + room];
  const [top, bottom] = [Math.max(0, y - room), y + layout.blockHeight + room];
  const end = Math.min(width, Math.round(right * scale));
  for (let row = Math.round(top * scale); row < Math.round(bottom * scale); row += 1) {
    pixels.fill(color, row * width + Math.round(left * scale), row * width + end);
  }
}
