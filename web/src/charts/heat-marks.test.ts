import { expect, it } from "vitest";
import { cellAt, type HeatNode, layoutHeat } from "./heat-layout";
import { type CellMark, markAt, paintMarks } from "./heat-marks";

const nodes: HeatNode[] = [
  { name: "a", first: 0, count: 4 },
  { name: "b", first: 4, count: 4 },
];
const CELL = 7;
const mark: CellMark = { sign: "bang", color: 1, edge: 2 };

it.each([1, 1.25, 2])("marks change pixels of their own cell only, at %s pixels per CSS pixel", (scale) => {
  const layout = layoutHeat(nodes, 400, 300);
  const width = Math.round(layout.width * scale);
  const pixels = new Uint32Array(width * Math.round(layout.height * scale)).fill(CELL);
  paintMarks(pixels, width, scale, layout, new Map([[6, mark]]));
  const { x, y } = cellAt(layout, 1, 2);
  const side = Math.round(layout.cell * scale);
  const [left, top] = [Math.round(x * scale), Math.round(y * scale)];
  const inside = (at: number) => {
    const [column, row] = [(at % width) - left, Math.floor(at / width) - top];
    return column >= 0 && column < side && row >= 0 && row < side;
  };
  const changed = [...pixels.keys()].filter((at) => pixels[at] !== CELL);
  expect(changed.length).toBeGreaterThan((side * side) / 3);
  expect(changed.every(inside)).toBe(true);
});

const picture = (sign: CellMark["sign"], n: number) =>
  Array.from({ length: n * n }, (_, at) => markAt(sign, at % n, Math.floor(at / n), n));

it.each([9, 12, 20, 34, 104])("leaves the state visible around two signs that differ, at %s pixels", (n) => {
  for (const sign of ["bang", "triangle"] as const) {
    const drawn = picture(sign, n);
    expect(drawn.slice(0, n).every((pixel) => pixel === "cell")).toBe(true);
    expect(new Set(drawn)).toEqual(new Set(["cell", "edge", "color", "gap"]));
  }
  expect(picture("bang", n)).not.toEqual(picture("triangle", n));
});

it.each([2, 3, 4, 5, 8])("has a pattern of two colors where a sign has no room, at %s pixels", (n) => {
  expect(new Set(picture("triangle", n))).toEqual(new Set(["edge", "color"]));
});
