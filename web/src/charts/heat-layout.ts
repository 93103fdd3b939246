/**
 * The position of every cell of the fleet. Integer arithmetic without the DOM.
 *
 * A node is a block of cells (its devices). The blocks of a rack are a box, and boxes flow left to right, so a bad
 * switch is a visible shape.
 */
export interface HeatNode {
  name: string;
  /** Index of the node's first cell in drawing order, and how many follow. */
  first: number;
  count: number;
  /** Nodes of one rack are adjacent. */
  rack?: string;
}

/** The nodes of one rack: indexes into `nodes`, and the box in CSS pixels. */
export interface HeatRack {
  name: string;
  first: number;
  count: number;
  /** Nodes in one row of the box. */
  across: number;
  x: number;
  y: number;
  width: number;
}

export interface HeatLayout {
  nodes: HeatNode[];
  racks: HeatRack[];
  /** Top left corner of each node's block, its label band included. */
  x: Int32Array;
  y: Int32Array;
  /** Side of a cell in CSS pixels, and the gap between cells of one node. */
  cell: number;
  gap: number;
  blockColumns: number;
  blockWidth: number;
  /** Height of the cells of a block, without its label. */
  blockHeight: number;
  /** Pitch of the blocks, their gap included. */
  stepX: number;
  stepY: number;
  /** Height of the label over each block; 0 when there is no room for names. */
  label: number;
  /** Height of the label over each rack; 0 when there are no racks or no room. */
  band: number;
  width: number;
  height: number;
}

const MAX_CELL = 34;
/** The largest cell, for few nodes. */
const FEW_NODES = 12;
const MAX_CELL_FEW = 52;
const MIN_CELL = 2;
const LABELED_CELL = 6; // smaller cells are worth more room than names
const LABEL = 20;
const MAX_LABELED_NODES = 96; // more names than this is noise, not help
const LABEL_WIDTH = 112;
const BAND = 16;
const BAND_WIDTH = 52; // a rack name of eight letters
const RACK_ASPECT = 2.5; // wider than high, as a screen is

/** Groups drawing order by node. Slots of one node are adjacent in a fleet layout. */
export function groupByNode(nodes: readonly string[], rackOf?: (index: number) => string): HeatNode[] {
  const groups: HeatNode[] = [];
  nodes.forEach((name, index) => {
    const last = groups.at(-1);
    if (last?.name === name) last.count += 1;
    else groups.push({ name, first: index, count: 1, ...(rackOf && { rack: rackOf(index) }) });
  });
  return groups;
}

interface Counts {
  /** Cells of the node that has the most. */
  most: number;
  racks: HeatRack[];
}

type Sizes = Omit<HeatLayout, "x" | "y" | "nodes">;

function racksOf(nodes: readonly HeatNode[]): HeatRack[] {
  const racks: HeatRack[] = [];
  nodes.forEach(({ rack = "" }, index) => {
    const last = racks.at(-1);
    if (last?.name === rack) last.count += 1;
    else racks.push({ name: rack, first: index, count: 1, across: 1, x: 0, y: 0, width: 0 });
  });
  return racks;
}

/** Place the boxes of the racks for one size of cells; the nodes are not placed yet. */
function attempt(
  { most, racks: found }: Counts,
  width: number,
  cell: number,
  { hasBand, hasLabels }: { hasBand: boolean; hasLabels: boolean },
): Sizes {
  const blockColumns = most <= 2 ? most : most <= 9 ? Math.ceil(most / 2) : Math.ceil(Math.sqrt(most));
  const blockRows = Math.ceil(most / blockColumns);
  const gap = cell >= 12 ? 2 : cell >= 5 ? 1 : 0;
  const between = hasLabels ? 14 : Math.max(1, Math.min(6, cell >> 1));
  const label = hasLabels ? LABEL : 0;
  const band = hasBand ? BAND : 0;
  const blockWidth = blockColumns * cell + (blockColumns - 1) * gap;
  const blockHeight = blockRows * cell + (blockRows - 1) * gap;
  const stepX = Math.max(blockWidth, hasLabels ? LABEL_WIDTH : 0) + between;
  const stepY = blockHeight + label + between;
  const perRow = Math.max(1, Math.floor((width + between) / stepX));
  const apart = hasBand ? Math.max(between, 10) : Math.max(between, 3);
  let x = 0;
  let y = 0;
  let bottom = 0;
  const racks = found.map((rack) => {
    const square = Math.ceil(Math.sqrt((rack.count * RACK_ASPECT * stepY) / stepX));
    const least = hasBand ? Math.ceil(BAND_WIDTH / stepX) : 1;
    const columns = Math.min(perRow, found.length === 1 ? perRow : Math.max(square, least));
    // Rows of equal length, where the box stays as wide as its name.
    const even = Math.ceil(rack.count / Math.ceil(rack.count / columns));
    const across = found.length === 1 ? columns : Math.min(columns, Math.max(even, least));
    const box = across * stepX - between;
    if (x > 0 && x + box > width) {
      x = 0;
      y = bottom + apart;
    }
    const placed = { ...rack, across, x, y, width: box };
    x += box + apart;
    bottom = Math.max(bottom, y + band + Math.ceil(rack.count / across) * stepY - between);
    return placed;
  });
  const sizes = { cell, gap, blockColumns, blockWidth, blockHeight, stepX, stepY, label, band };
  return { ...sizes, racks, width, height: bottom };
}

function place(nodes: HeatNode[], sizes: Sizes): HeatLayout {
  const x = new Int32Array(nodes.length);
  const y = new Int32Array(nodes.length);
  for (const rack of sizes.racks) {
    for (let index = 0; index < rack.count; index += 1) {
      x[rack.first + index] = rack.x + (index % rack.across) * sizes.stepX;
      y[rack.first + index] = rack.y + sizes.band + Math.floor(index / rack.across) * sizes.stepY;
    }
  }
  return { nodes, x, y, ...sizes };
}

/** Return the largest cells with which the whole fleet fits; a fleet too large for the smallest cell scrolls. */
export function layoutHeat(nodes: HeatNode[], width: number, maxHeight: number): HeatLayout {
  const racks = racksOf(nodes);
  const most = nodes.reduce((max, node) => Math.max(max, node.count), 1);
  const counts = { most, racks };
  const hasNames = nodes.length <= MAX_LABELED_NODES;
  const named = racks.length > 1 || (racks[0]?.name ?? "") !== "";
  const choices = [
    ...(hasNames ? [{ hasBand: named, hasLabels: true, least: LABELED_CELL }] : []),
    ...(named ? [{ hasBand: true, hasLabels: false, least: MIN_CELL }] : []),
    { hasBand: false, hasLabels: false, least: MIN_CELL },
  ];
  for (const { least, ...choice } of choices) {
    for (let cell = nodes.length <= FEW_NODES ? MAX_CELL_FEW : MAX_CELL; cell >= least; cell -= 1) {
      const sizes = attempt(counts, width, cell, choice);
      const fitsWidth = sizes.stepX <= width || cell <= 4;
      // Names of racks are worth a second screen.
      const fitsHeight = sizes.height <= maxHeight * (choice.hasBand && cell === MIN_CELL ? 2 : 1);
      if (fitsHeight && fitsWidth) return place(nodes, sizes);
    }
  }
  return place(nodes, attempt(counts, width, MIN_CELL, { hasBand: false, hasLabels: false }));
}

/** Top left corner of a cell in CSS pixels. */
export function cellAt(layout: HeatLayout, nodeIndex: number, offset: number): { x: number; y: number } {
  const pitch = layout.cell + layout.gap;
  const inColumn = offset % layout.blockColumns;
  const inRow = (offset - inColumn) / layout.blockColumns;
  return {
    x: (layout.x[nodeIndex] as number) + inColumn * pitch,
    y: (layout.y[nodeIndex] as number) + layout.label + inRow * pitch,
  };
}
