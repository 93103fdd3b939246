import { describe, expect, it } from "vitest";
import type { FleetHistory } from "@/api/types";
import { integer } from "@/lib/format";
import { bucketOf, bucketText, endFor, statePaths } from "./history-model";

const history: FleetHistory = {
  since: 0,
  until: 30,
  known_since: 5,
  times: [10, 20, 30],
  states: { healthy: [0, 9997, 9999], quarantined: [0, 3, 1] },
  incidents: [0, 2, 0],
};

describe("history of the fleet", () => {
  it("shows the present, or a past time in the middle of its range", () => {
    expect(endFor(undefined, "1h", 10_000)).toBeUndefined();
    expect(endFor(9000, "1h", 10_000)).toBeUndefined();
    expect(endFor(1000, "1h", 10_000)).toBe(2800);
    expect(endFor(6000, "1h", 10_000)).toBe(7800);
  });

  it("finds the bucket of a time, which holds its end", () => {
    expect([-5, 10, 10.1, 30, 99].map((at) => bucketOf(history, at))).toEqual([0, 0, 1, 2, 2]);
  });

  it("says what a bucket holds", () => {
    expect(bucketText(history, 0)).toBe("no data");
    expect(bucketText(history, 1)).toBe(`3 quarantined, ${integer(9997)} healthy, 2 incidents opened`);
  });

  it("draws few nodes of many so that they are visible, and nothing where nothing is known", () => {
    const paths = Object.fromEntries(statePaths(history).map(({ state, path }) => [state, path]));
    expect(paths.quarantined).toBe("M1 0.0000h1v0.0909h-1zM2 0.0000h1v0.0909h-1z");
    expect(paths.healthy).toContain("M1 0.0909h1v0.9091h-1z");
    expect(paths.draining).toBe("");
  });
});
