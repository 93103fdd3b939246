import { describe, expect, it } from "vitest";
import { bridged, heldAt } from "./bridge";

const _ = undefined;

describe("bridged", () => {
  it("keeps a signal with a value in every column, with its gaps", () => {
    expect(bridged([1, 2, null, 4, 5])).toEqual([1, 2, null, 4, 5]);
    expect(bridged([null, null])).toEqual([null, null]);
  });

  it("draws on between readings at the signal's own rate", () => {
    expect(bridged([1, null, null, 2, null, null, 3])).toEqual([1, _, _, 2, _, _, 3]);
  });

  it("breaks at a lost reading and ends after the last one", () => {
    const values = [1, null, 2, null, 3, null, null, null, 4, null, 5, null, null];
    expect(bridged(values)).toEqual([1, _, 2, _, 3, null, null, null, 4, _, 5, null, null]);
  });
});

it("reads the last value, and none in a gap", () => {
  const column = bridged([1, null, null, 2, null, null, 3, null]);
  expect([0, 2, 3, 7].map((i) => heldAt(column, i))).toEqual([1, 1, 2, null]);
});
