/** A matrix of cells on a canvas: the position of each cell, the cell at a point, and cells that share a pixel. */

export interface MatrixLayout {
  rows: number;
  columns: number;
  /** Sides of a cell in CSS pixels; not whole numbers where many cells share a width. */
  cellWidth: number;
  cellHeight: number;
  width: number;
  height: number;
}

interface Room {
  width: number;
  maxHeight: number;
  /** Cells as wide as they are high. */
  square: boolean;
}

const MOST_SIDE = 28;
/** The largest cell. */
const FEW = 12;
const MOST_SIDE_FEW = 52;
/** A row of a wide picture is at most as high as a line of text. */
const MOST_ROW = 22;

/** Return the largest cells with which the whole matrix fits. */
export function layoutMatrix(rows: number, columns: number, room: Room): MatrixLayout {
  const across = room.width / Math.max(1, columns);
  const down = room.maxHeight / Math.max(1, rows);
  const side = Math.min(across, down, rows <= FEW && columns <= FEW ? MOST_SIDE_FEW : MOST_SIDE);
  const cellWidth = room.square ? side : across;
  const cellHeight = room.square ? side : Math.min(down, MOST_ROW);
  return { rows, columns, cellWidth, cellHeight, width: cellWidth * columns, height: cellHeight * rows };
}

export interface Place {
  row: number;
  column: number;
}

export function placeAt(layout: MatrixLayout, x: number, y: number): Place | null {
  const column = Math.floor(x / layout.cellWidth);
  const row = Math.floor(y / layout.cellHeight);
  const inside = x >= 0 && y >= 0 && row < layout.rows && column < layout.columns;
  return inside ? { row, column } : null;
}

const MOVES: Record<string, [number, number]> = {
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  h: [0, -1],
  l: [0, 1],
  k: [-1, 0],
  j: [1, 0],
  PageUp: [-10, 0],
  PageDown: [10, 0],
  Home: [0, Number.NEGATIVE_INFINITY],
  End: [0, Number.POSITIVE_INFINITY],
};

/** Return the position after a key, stopped at the edges; null for a key without meaning here. */
export function moved(
  layout: Pick<MatrixLayout, "rows" | "columns">,
  from: Place | null,
  key: string,
): Place | null {
  const move = MOVES[key];
  if (!move) return null;
  if (!from) return { row: 0, column: 0 };
  const clamp = (value: number, count: number) => Math.max(0, Math.min(count - 1, value));
  return {
    row: clamp(from.row + move[0], layout.rows),
    column: clamp(from.column + move[1], layout.columns),
  };
}

/** Return which of n rows get a label, when labels need `apart` pixels and rows are `pitch` pixels apart. */
export function labeledIndices(n: number, pitch: number, apart: number): number[] {
  const least = apart / Math.max(pitch, 1e-9);
  const nice = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048].find((s) => s >= least) ?? n;
  return Array.from({ length: Math.ceil(n / nice) }, (_, i) => i * nice);
}

/** Consecutive indices that share one cell: [from, to). */
export type Bin = readonly [number, number];

/** Return n indices in at most `most` bins of equal size. */
export function evenBins(n: number, most: number): Bin[] {
  const size = Math.max(1, Math.ceil(n / Math.max(1, most)));
  return Array.from(
    { length: Math.ceil(n / size) },
    (_, i) => [i * size, Math.min(n, (i + 1) * size)] as const,
  );
}

/** Runs of equal labels as bins. */
export function runs(labels: readonly string[]): Bin[] {
  const found: [number, number][] = [];
  labels.forEach((label, index) => {
    const last = found.at(-1);
    if (last && labels[last[0]] === label) last[1] = index + 1;
    else found.push([index, index + 1]);
  });
  return found;
}

/** Return one row per index while they fit; then one row per label (a node); then several labels per row. */
export function binsFor(labels: readonly string[], most: number): Bin[] {
  if (labels.length <= most) return labels.map((_, index) => [index, index + 1] as const);
  const groups = runs(labels);
  return evenBins(groups.length, most).map(
    ([from, to]) => [(groups[from] as Bin)[0], (groups[to - 1] as Bin)[1]] as const,
  );
}

/** Return where groups of bins start, except the first; none where the lines would be too close. */
export function breaks(labels: readonly string[], bins: readonly Bin[], pitch: number, apart = 8): number[] {
  const found = bins
    .map(([from], index) => ({ index, label: labels[from], before: labels[from - 1] }))
    .filter(({ index, label, before }) => index > 0 && label !== before)
    .map(({ index }) => index);
  return bins.length * pitch < (found.length + 1) * apart || found.length === bins.length - 1 ? [] : found;
}
