import { expect, test } from "vitest";
import { batched } from "./batched";

test("calls of one moment are one, in parts of a size", async () => {
  const asked: number[][] = [];
  const double = batched(2, async (keys: number[]) => {
    asked.push(keys);
    return keys.map((key) => 2 * key);
  });
  expect(await Promise.all([double(1), double(2), double(3)])).toEqual([2, 4, 6]);
  expect(asked).toEqual([[1, 2], [3]]);
  expect(await double(4)).toBe(8);
});

test("a failure reaches each call of its part only", async () => {
  const fail = batched(1, async (keys: number[]) => {
    if (keys[0] === 2) throw new Error("two");
    return keys;
  });
  const ended = await Promise.allSettled([fail(1), fail(2)]);
  expect(ended.map((one) => one.status)).toEqual(["fulfilled", "rejected"]);
});
