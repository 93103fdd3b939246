import { expect, it } from "vitest";
import { layoutMatrix } from "./matrix-layout";
import { CLEAR, edges, paintMatrix } from "./matrix-paint";

it("shares an edge between neighbors", () => {
  expect([...edges(4, 2.5, 1)]).toEqual([0, 3, 5, 8, 10]);
});

it("paints every cell and leaves missing ones clear", () => {
  const layout = layoutMatrix(2, 3, { width: 6, maxHeight: 4, square: false });
  const pixels = new Uint32Array(6 * 4);
  paintMatrix(pixels, 6, 1, layout, (row, column) =>
    row === 0 && column === 1 ? CLEAR : row * 3 + column + 1,
  );
  expect([...pixels]).toEqual([1, 1, 0, 0, 3, 3, 1, 1, 0, 0, 3, 3, 4, 4, 5, 5, 6, 6, 4, 4, 5, 5, 6, 6]);
});

it("separates large cells", () => {
  const layout = layoutMatrix(1, 2, { width: 20, maxHeight: 10, square: false });
  const pixels = new Uint32Array(20 * 10);
  paintMatrix(pixels, 20, 1, layout, () => 9);
  expect(pixels[8]).toBe(9);
  expect(pixels[9]).toBe(CLEAR);
  expect(pixels[9 * 20]).toBe(CLEAR);
  paintMatrix(pixels, 20, 1, layout, () => 9, false);
  expect(pixels[9]).toBe(9);
});
