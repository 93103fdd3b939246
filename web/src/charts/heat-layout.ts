/**
 * The position of every cell of the fleet, and the cell at a point. Integer arithmetic without the DOM.
 *
 * A node is a block of cells (its devices). Blocks flow left to right in fleet order, so nodes of one rack are close
 * together and a bad switch is a visible shape.
 */
export interface HeatNode {
  name: string;
  /** Index of the node's first cell in drawing order, and how many follow. */
  first: number;
  count: number;
}

export interface HeatLayout {
  nodes: HeatNode[];
  /** Side of a cell in CSS pixels, and the gap between cells of one node. */
  cell: number;
  gap: number;
  blockColumns: number;
  /** Pitch of the blocks, their gap included. */
  stepX: number;
  stepY: number;
  /** Height of the label band over each block; 0 when there is no room for names. */
  label: number;
  perRow: number;
  width: number;
  height: number;
}

const MAX_CELL = 34;
/** The largest cell, for few nodes. */
const FEW_NODES = 12;
const MAX_CELL_FEW = 52;
const MIN_CELL = 2;
const LABEL = 20;
const MAX_LABELED_NODES = 96; // more names than this is noise, not help
const LABEL_WIDTH = 112;

/** Groups drawing order by node. Slots of one node are adjacent in a fleet layout. */
export function groupByNode(nodes: readonly string[]): HeatNode[] {
  const groups: HeatNode[] = [];
  nodes.forEach((name, index) => {
    const last = groups.at(-1);
    if (last?.name === name) last.count += 1;
    else groups.push({ name, first: index, count: 1 });
  });
  return groups;
}

function attempt(nodes: HeatNode[], width: number, cell: number, hasLabels: boolean): HeatLayout {
  const most = nodes.reduce((max, node) => Math.max(max, node.count), 1);
  const blockColumns = most <= 2 ? most : most <= 9 ? Math.ceil(most / 2) : Math.ceil(Math.sqrt(most));
  const blockRows = Math.ceil(most / blockColumns);
  const gap = cell >= 12 ? 2 : cell >= 5 ? 1 : 0;
  const between = hasLabels ? 14 : Math.max(1, Math.min(6, cell >> 1));
  const label = hasLabels ? LABEL : 0;
  const blockWidth = blockColumns * cell + (blockColumns - 1) * gap;
  const stepX = Math.max(blockWidth, hasLabels ? LABEL_WIDTH : 0) + between;
  const stepY = blockRows * cell + (blockRows - 1) * gap + label + between;
  const perRow = Math.max(1, Math.floor((width + between) / stepX));
  const height = Math.ceil(nodes.length / perRow) * stepY - between;
  return { nodes, cell, gap, blockColumns, stepX, stepY, label, perRow, width, height: Math.max(0, height) };
}

/** Return the largest cells with which the whole fleet fits; a fleet too large for the smallest cell scrolls. */
export function layoutHeat(nodes: HeatNode[], width: number, maxHeight: number): HeatLayout {
  const hasLabels = nodes.length <= MAX_LABELED_NODES;
  for (let cell = nodes.length <= FEW_NODES ? MAX_CELL_FEW : MAX_CELL; cell > MIN_CELL; cell -= 1) {
    const layout = attempt(nodes, width, cell, hasLabels);
    const fitsWidth = layout.perRow > 1 || layout.stepX <= width || cell <= 4;
    if (layout.height <= maxHeight && fitsWidth) return layout;
  }
  return attempt(nodes, width, MIN_CELL, false);
}

/** Top left corner of a cell in CSS pixels. */
export function cellAt(layout: HeatLayout, nodeIndex: number, offset: number): { x: number; y: number } {
  const pitch = layout.cell + layout.gap;
  const column = nodeIndex % layout.perRow;
  const row = (nodeIndex - column) / layout.perRow;
  const inColumn = offset % layout.blockColumns;
  const inRow = (offset - inColumn) / layout.blockColumns;
  return {
    x: column * layout.stepX + inColumn * pitch,
    y: row * layout.stepY + layout.label + inRow * pitch,
  };
}

/** Index in drawing order of the cell under a point, or null over a gap. */
export function hit(layout: HeatLayout, x: number, y: number): number | null {
  if (x < 0 || y < 0) return null;
  const column = Math.floor(x / layout.stepX);
  const row = Math.floor(y / layout.stepY);
  if (column >= layout.perRow) return null;
  const node = layout.nodes[row * layout.perRow + column];
  if (!node) return null;
  const pitch = layout.cell + layout.gap;
  const inX = x - column * layout.stepX;
  const inY = y - row * layout.stepY - layout.label;
  if (inY < 0 || inX % pitch >= layout.cell || inY % pitch >= layout.cell) return null;
  const inColumn = Math.floor(inX / pitch);
  if (inColumn >= layout.blockColumns) return null;
  const offset = Math.floor(inY / pitch) * layout.blockColumns + inColumn;
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
  const other = layout.nodes[at + sign * layout.perRow];
  if (!other) return index;
  const column = offset % layout.blockColumns;
  if (direction === "down") return other.first + Math.min(column, other.count - 1);
  const lastRow = Math.floor((other.count - 1) / layout.blockColumns) * layout.blockColumns;
  return other.first + Math.min(lastRow + column, other.count - 1);
}
