import { describe, expect, it } from "vitest";
import type { Remedy } from "@/api/types";
import { remedyOrder } from "@/lib/states";
import { evicts, highestRemedy } from "./remedy-model";

const finding = (remedy: Remedy, active = true) => ({ remedy, active });

describe("highestRemedy", () => {
  it("is the highest rung of what still stands", () => {
    expect(highestRemedy([finding("watch"), finding("reset_gpu"), finding("replace", false)])).toBe(
      "reset_gpu",
    );
  });

  it("is what was asked for where nothing stands any more", () => {
    expect(highestRemedy([finding("inspect", false), finding("watch", false)])).toBe("inspect");
  });

  it("is nothing without findings", () => {
    expect(highestRemedy([])).toBe("none");
  });
});

it("empties the node from the reset of a GPU on", () => {
  expect(remedyOrder.filter(evicts)).toEqual(["reset_gpu", "reboot_node", "inspect", "replace"]);
});
