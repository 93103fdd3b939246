import { describe, expect, it } from "vitest";
import {
  cellAt,
  groupByNode,
  type HeatLayout,
  type HeatNode,
  hit,
  layoutHeat,
  neighbor,
  nodeOf,
} from "./heat-layout";

const fleet = (nodes: number, devices: number): HeatNode[] =>
  Array.from({ length: nodes }, (_, i) => ({ name: `n${i}`, first: i * devices, count: devices }));

const shapes: [string, HeatNode[], number, number][] = [
  ["two hosts", fleet(2, 1), 1000, 460],
  ["a rack of 8-GPU nodes", fleet(24, 8), 990, 460],
  ["6,400 GPUs", fleet(800, 8), 900, 200],
  ["nodes of unequal size", groupByNode(["a", "a", "a", "b", "c", "c", "c", "c", "c"]), 700, 300],
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
    const right = layout.perRow * layout.stepX;
    expect(right - layout.stepX).toBeLessThanOrEqual(width);
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
    expect(nodeOf(layout, below)).toBe(layout.perRow);
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
