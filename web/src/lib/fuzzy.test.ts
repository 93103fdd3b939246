import { expect, it } from "vitest";
import { fuzzyFilter, fuzzyScore } from "./fuzzy";

it("needs every letter in order", () => {
  expect(fuzzyScore("rk1", "rack01-node1")).toBeGreaterThan(0);
  expect(fuzzyScore("1kr", "rack")).toBe(-1);
});

it("puts word starts and runs first", () => {
  const names = ["validation", "rack01-node1 node", "overview", "nodes"];
  expect(fuzzyFilter(names, "node", (n) => n, 4)[0]).toBe("nodes");
  expect(fuzzyFilter(names, "v", (n) => n, 1)).toEqual(["validation"]);
});

it("returns all items in order for an empty query", () => {
  expect(fuzzyFilter(["b", "a", "c"], " ", (n) => n, 2)).toEqual(["b", "a"]);
});
