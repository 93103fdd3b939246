/** Cells to pixels: one pass over an RGBA buffer. Missing cells stay clear, so the background shows. */
import type { MatrixLayout } from "./matrix-layout";

/** Clear: no cell at all. */
export const CLEAR = 0;
/** Cells of at least this side (CSS pixels) are one pixel apart. */
const ROOMY = 7;

/** Edges of n cells in whole device pixels: neighbors share an edge, without a seam or an overlap. */
export function edges(n: number, side: number, scale: number): Int32Array {
  return Int32Array.from({ length: n + 1 }, (_, i) => Math.round(i * side * scale));
}

/**
 * `color(row, column)` is ABGR, as a little-endian Uint32 view of canvas pixels reads it. Without `gaps` large cells
 * touch, so that a textured background shows only in place of missing cells.
 */
export function paintMatrix(
  pixels: Uint32Array,
  pixelWidth: number,
  scale: number,
  layout: MatrixLayout,
  color: (row: number, column: number) => number,
  gaps = true,
): void {
  pixels.fill(CLEAR);
  const xs = edges(layout.columns, layout.cellWidth, scale);
  const ys = edges(layout.rows, layout.cellHeight, scale);
  const gapX = gaps && layout.cellWidth >= ROOMY ? Math.max(1, Math.round(scale)) : 0;
  const gapY = gaps && layout.cellHeight >= ROOMY ? Math.max(1, Math.round(scale)) : 0;
  for (let row = 0; row < layout.rows; row += 1) {
    const top = ys[row] as number;
    const bottom = Math.max(top + 1, (ys[row + 1] as number) - gapY);
    const start = top * pixelWidth;
    for (let column = 0; column < layout.columns; column += 1) {
      const left = xs[column] as number;
      const right = Math.max(left + 1, (xs[column + 1] as number) - gapX);
      pixels.fill(color(row, column), start + left, start + right);
    }
    for (let y = top + 1; y < bottom; y += 1) pixels.copyWithin(y * pixelWidth, start, start + pixelWidth);
  }
}
