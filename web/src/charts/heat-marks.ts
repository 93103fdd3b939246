/** Signs over single cells. Only the cells that have one are painted again. */
import { nodeOf } from "./heat-find";
import { cellAt, type HeatLayout } from "./heat-layout";

export interface CellMark {
  sign: "bang" | "triangle";
  /** Colors as `Ink` has them. */
  color: number;
  edge: number;
}

/** The marks by index of their cell in drawing order. */
export type Marks = ReadonlyMap<number, CellMark>;

/** From this side on, in pixels, a cell shows a sign and its own state; from the smaller one on, a frame. */
const SHAPED = 9;
const FRAMED = 5;

/** Return what a mark draws on a pixel of an n×n cell; `cell` leaves what is there, so that its state stays visible. */
export function markAt(
  sign: CellMark["sign"],
  x: number,
  y: number,
  n: number,
): "cell" | "gap" | "color" | "edge" {
  if (n < FRAMED) return (x + y) % 2 === 0 ? "edge" : "color";
  const ring = n < SHAPED ? 0 : Math.max(1, Math.round(n / 8));
  const frame = ring + Math.max(1, Math.round(n / 16));
  const inside = (margin: number) => Math.min(x, y) >= margin && Math.max(x, y) < n - margin;
  if (!inside(ring)) return "cell";
  if (!inside(frame)) return "edge";
  if (n < SHAPED) return "color";
  const size = n - 2 * frame;
  const aside = Math.abs(x + 0.5 - n / 2) / size; // 0 in the middle, 0.5 at the side
  const down = (y + 0.5 - frame) / size; // 0 at the top, 1 at the bottom
  if (sign === "triangle") return down > 0.2 && down < 0.8 && aside <= (down - 0.1) / 2 ? "gap" : "color";
  const stroke = aside <= Math.max(0.09, 0.6 / size);
  return stroke && ((down > 0.15 && down < 0.6) || (down > 0.7 && down < 0.87)) ? "gap" : "color";
}

/** Paint the marks over cells that `paintHeat` painted. */
export function paintMarks(
  pixels: Uint32Array,
  pixelWidth: number,
  scale: number,
  layout: HeatLayout,
  marks: Marks,
): void {
  const side = Math.max(1, Math.round(layout.cell * scale));
  const pixelHeight = pixels.length / pixelWidth;
  for (const [cell, { sign, color, edge }] of marks) {
    const node = nodeOf(layout, cell);
    const { x, y } = cellAt(layout, node, cell - (layout.nodes[node]?.first ?? 0));
    const [left, top] = [Math.round(x * scale), Math.round(y * scale)];
    for (let row = 0; row < Math.min(side, pixelHeight - top); row += 1) {
      for (let column = 0; column < Math.min(side, pixelWidth - left); column += 1) {
        const drawn = markAt(sign, column, row, side);
        if (drawn === "cell") continue;
        const at = (top + row) * pixelWidth + left + column;
        pixels[at] = drawn === "gap" ? 0 : drawn === "edge" ? edge : color;
      }
    }
  }
}
