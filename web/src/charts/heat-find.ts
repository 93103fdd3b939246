/** The cells of the fleet at a point, in a box, or in the direction of an arrow key. */
import type { HeatLayout, HeatNode } from "./heat-layout";

export interface Box {
  left: number;
  top: number;
  right: number;
  bottom: number;
}

/** Indexes of the nodes whose cells a box touches. */
export function nodesInBox(layout: HeatLayout, box: Box): number[] {
  const found: number[] = [];
  layout.x.forEach((x, index) => {
    const y = (layout.y[index] as number) + layout.label;
    const inX = x < box.right && x + layout.blockWidth > box.left;
    if (inX && y < box.bottom && y + layout.blockHeight > box.top) found.push(index);
  });
  return found;
}

/** Index in drawing order of the cell under a point, or null over a gap. */
export function hit(layout: HeatLayout, x: number, y: number): number | null {
  const [at] = nodesInBox(layout, { left: x, right: x + 1e-9, top: y, bottom: y + 1e-9 });
  const node = layout.nodes[at ?? -1];
  if (at === undefined || !node) return null;
  const pitch = layout.cell + layout.gap;
  const inX = x - (layout.x[at] as number);
  const inY = y - (layout.y[at] as number) - layout.label;
  if (inX % pitch >= layout.cell || inY % pitch >= layout.cell) return null;
  const offset = Math.floor(inY / pitch) * layout.blockColumns + Math.floor(inX / pitch);
  return offset < node.count ? node.first + offset : null;
}

/** The node that holds a cell, by bisection, as an index into `nodes`. */
export function nodeOf(layout: HeatLayout, index: number): number {
  let low = 0;
  let high = layout.nodes.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if ((layout.nodes[middle] as HeatNode).first <= index) low = middle;
    else high = middle - 1;
  }
  return low;
}

export type Direction = "left" | "right" | "up" | "down";

/** Return the cell in the direction of an arrow key; the same cell at the edge. */
export function neighbor(layout: HeatLayout, index: number, direction: Direction): number {
  const total = layout.nodes.reduce((sum, node) => sum + node.count, 0);
  if (direction === "left") return Math.max(0, index - 1);
  if (direction === "right") return Math.min(total - 1, index + 1);
  const at = nodeOf(layout, index);
  const node = layout.nodes[at] as HeatNode;
  const offset = index - node.first;
  const sign = direction === "down" ? 1 : -1;
  const inside = offset + sign * layout.blockColumns;
  if (inside >= 0 && inside < node.count) return node.first + inside;
  const other = layout.nodes[nodeBeside(layout, at, sign)];
  if (!other) return index;
  const column = offset % layout.blockColumns;
  if (direction === "down") return other.first + Math.min(column, other.count - 1);
  const lastRow = Math.floor((other.count - 1) / layout.blockColumns) * layout.blockColumns;
  return other.first + Math.min(lastRow + column, other.count - 1);
}

/** The closest node above (-1) or below (1) in the same column, by its left edge; -1 without one. */
function nodeBeside(layout: HeatLayout, at: number, sign: 1 | -1): number {
  const x = layout.x[at] as number;
  const y = layout.y[at] as number;
  let best = -1;
  let least = Number.POSITIVE_INFINITY;
  layout.y.forEach((otherY, index) => {
    const down = (otherY - y) * sign;
    const across = Math.abs((layout.x[index] as number) - x);
    if (down <= 0 || across >= layout.stepX || down * 4096 + across >= least) return;
    best = index;
    least = down * 4096 + across;
  });
  return best;
}
