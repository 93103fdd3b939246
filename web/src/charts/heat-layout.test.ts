import { describe, expect, it } from "vitest";
import { hit, neighbor, nodeOf, nodesInBox } from "./heat-find";
import { cellAt, groupByNode, type HeatLayout, type HeatNode, layoutHeat } from "./heat-layout";

const fleet = (nodes: number, devices: number): HeatNode[] =>
  Array.from({ length: nodes }, (_, i) => ({ name: `n${i}`, first: i * devices, count: devices }));

/** Racks of `size` nodes with eight GPUs. */
const racked = (nodes: number, size: number): HeatNode[] =>
  fleet(nodes, 8).map((node, i) => ({ ...node, rack: `r${Math.floor(i / size)}` }));

const shapes: [string, HeatNode[], number, number][] = [
  ["two hosts", fleet(2, 1), 1000, 460],
  ["a rack of 8-GPU nodes", fleet(24, 8), 990, 460],
  ["6,400 GPUs", fleet(800, 8), 900, 200],
  ["nodes of unequal size", groupByNode(["a", "a", "a", "b", "c", "c", "c", "c", "c"]), 700, 300],
  ["racks", racked(48, 8), 1000, 460],
  ["racks of unequal size", [...racked(20, 16), { name: "x", first: 160, count: 8, rack: "z" }], 600, 460],
  ["racks on a telephone", racked(48, 8), 340, 460],
  ["2,000 nodes in racks of 32", racked(2000, 32), 1376, 460],
  ["a narrow window", fleet(40, 4), 150, 300],
];

describe.each(shapes)("%s", (_, nodes, width, height) => {
  const layout = layoutHeat(nodes, width, height);

  it("finds every cell at its own position, corners included", () => {
    layout.nodes.forEach((node, index) => {
      for (let offset = 0; offset < node.count; offset += 1) {
        const { x, y } = cellAt(layout, index, offset);
        expect(hit(layout, x, y)).toBe(node.first + offset);
        expect(hit(layout, x + layout.cell - 0.01, y + layout.cell - 0.01)).toBe(node.first + offset);
      }
    });
  });

  it("stays inside its width unless not even the smallest cell fits", () => {
    for (const x of layout.x) expect(x === 0 || x + layout.blockWidth <= width).toBe(true);
  });

  it("finds the node of every cell", () => {
    layout.nodes.forEach((node, index) => {
      expect(nodeOf(layout, node.first)).toBe(index);
      expect(nodeOf(layout, node.first + node.count - 1)).toBe(index);
    });
  });
});

describe("hit", () => {
  const layout = layoutHeat(fleet(24, 8), 990, 460);

  it("finds nothing between cells, over labels and outside", () => {
    expect(hit(layout, -1, 30)).toBeNull();
    expect(hit(layout, 5, 3)).toBeNull();
    expect(hit(layout, layout.cell + 0.5, layout.label + 1)).toBeNull();
    expect(hit(layout, 1e6, 30)).toBeNull();
    expect(hit(layout, 5, 1e6)).toBeNull();
  });
});

describe("neighbor", () => {
  const layout: HeatLayout = layoutHeat(fleet(24, 8), 990, 460);

  it("walks cells in order and stops at the ends", () => {
    expect(neighbor(layout, 0, "left")).toBe(0);
    expect(neighbor(layout, 0, "right")).toBe(1);
    expect(neighbor(layout, 191, "right")).toBe(191);
  });

  it("moves down inside a node, then into the node below", () => {
    const inside = neighbor(layout, 1, "down");
    expect(inside).toBe(1 + layout.blockColumns);
    const below = neighbor(layout, inside, "down");
    expect(nodeOf(layout, below)).toBe(layout.x.indexOf(0, 1)); // the first node of the second row
    expect(neighbor(layout, below, "up")).toBe(inside);
  });

  it("always reaches an existing cell", () => {
    const uneven = layoutHeat(groupByNode(["a", "a", "a", "b", "c", "c", "c", "c", "c"]), 150, 300);
    for (let index = 0; index < 9; index += 1) {
      for (const direction of ["left", "right", "up", "down"] as const) {
        const next = neighbor(uneven, index, direction);
        expect(next).toBeGreaterThanOrEqual(0);
        expect(next).toBeLessThan(9);
      }
    }
  });
});

describe("racks", () => {
  const layout = layoutHeat(racked(48, 8), 1000, 460);

  it("are boxes with room for their name, and do not overlap", () => {
    expect(layout.racks.map((rack) => [rack.name, rack.first, rack.count])).toEqual(
      [0, 8, 16, 24, 32, 40].map((first, i) => [`r${i}`, first, 8]),
    );
    expect(layout.band).toBeGreaterThan(0);
    const owner = (x: number, y: number) =>
      layout.racks.filter((r) => x >= r.x && x < r.x + r.width && y >= r.y).at(-1)?.name;
    layout.nodes.forEach((node, i) => {
      expect(owner(layout.x[i] as number, layout.y[i] as number)).toBe(node.rack);
      expect(layout.y[i]).toBeGreaterThanOrEqual((layout.racks[i >> 3]?.y ?? 0) + layout.band);
    });
  });

  it("have no name where none was reported", () => {
    expect(layoutHeat(fleet(24, 8), 990, 460).band).toBe(0);
  });

  it("lose their names before the fleet needs a third screen", () => {
    const many = layoutHeat(racked(10_000, 8), 1376, 460);
    expect(many.band).toBe(0);
    expect(many.racks).toHaveLength(1250);
    expect(layoutHeat(racked(10_000, 32), 1376, 460).band).toBeGreaterThan(0);
  });
});

describe("nodesInBox", () => {
  const layout = layoutHeat(fleet(24, 8), 990, 460);
  const corner = (index: number) => cellAt(layout, index, 0);

  it("finds the nodes that it touches, in any part", () => {
    const { x, y } = corner(1);
    expect(nodesInBox(layout, { left: x + 1, top: y + 1, right: x + 2, bottom: y + 2 })).toEqual([1]);
    expect(nodesInBox(layout, { left: 0, top: y, right: x + 1, bottom: y + 2 })).toEqual([0, 1]);
  });

  it("finds all, and none in a gap", () => {
    expect(nodesInBox(layout, { left: 0, top: 0, right: 1e4, bottom: 1e4 })).toHaveLength(24);
    const gap = corner(0).x + layout.blockWidth;
    expect(nodesInBox(layout, { left: gap, top: 0, right: gap + 1, bottom: 30 })).toEqual([]);
  });
});
