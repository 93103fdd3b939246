import { describe, expect, it } from "vitest";
import { acrossRanks, deviations, fullScale, lately, standouts, worstIn } from "./peers";
import { deviationText, rankSignals, signalOf, valueText } from "./rank-signals";

/** 8 ranks of 2 stages over 60 steps: the second stage takes twice as long, rank 5 is 24% slow from step 30. */
const roles = Array.from({ length: 8 }, (_, rank) => rank % 2);
const table = roles.map((role, rank) =>
  Array.from({ length: 60 }, (_, step) => {
    const noise = 1 + 0.004 * Math.sin(rank * 12.9 + step * 7.1);
    return (role ? 2 : 1) * noise * (rank === 5 && step >= 30 ? 1.24 : 1);
  }),
);

describe("deviations from peers", () => {
  const found = deviations(table, roles, "ratio");
  it("show a straggler as a line, but not a slow stage", () => {
    const recent = lately(found, 20);
    expect(recent[5]).toBeCloseTo(0.24, 1);
    expect(recent.filter((_, rank) => rank !== 5).every((v) => Math.abs(v) < 0.02)).toBe(true);
    expect(standouts([0, 1, 2, 3, 4, 5, 6, 7], recent).map((s) => s.rank)).toEqual([5]);
    expect(fullScale(found, recent)).toBe(0.25);
  });

  it("do not depend on missing ranks, and are missing where the value is", () => {
    const holes = table.map((row, rank) => row.map((v, step) => (rank === 3 && step < 10 ? null : v)));
    const with_holes = deviations(holes, roles, "ratio");
    expect(with_holes.values[3 * 60 + 4]).toBeNaN();
    expect(with_holes.values[5 * 60 + 4]).toBeCloseTo(found.values[5 * 60 + 4] as number, 1);
  });

  it("are unknown for a rank without peers", () => {
    const lonely = deviations(
      [
        [1, 2],
        [1, 2],
      ],
      [0, 1],
      "ratio",
    );
    expect([...lonely.values].every(Number.isNaN)).toBe(true);
    expect(lately(lonely, 5)[0]).toBeNaN();
  });

  it("express waits as a ratio of the step, since a wait may be zero", () => {
    const waits = [
      [0, 0],
      [0, 0.5],
      [0, 0],
      [0, 0],
    ];
    const found = deviations(waits, [0, 0, 0, 0], "share", [1, 2]);
    expect([...found.values]).toEqual([0, 0, 0, 0.25, 0, 0, 0, 0]);
  });

  it("keep noise pale, and a straggler visible beside one extreme step", () => {
    const quiet = deviations(
      table.map((row) => row.slice(0, 20)),
      roles,
      "ratio",
    );
    expect(fullScale(quiet, lately(quiet, 20))).toBe(0.1);
    const wild = table.map((row, rank) => row.map((v, step) => (rank === 2 && step === 3 ? v * 50 : v)));
    const spiky = deviations(wild, roles, "ratio");
    expect(fullScale(spiky, lately(spiky, 20))).toBe(0.25);
  });

  it("show the largest deviation of a shared pixel", () => {
    expect(worstIn(found, [4, 8], [28, 32])).toMatchObject({ row: 5 });
    expect(worstIn(deviations([[null]], [0], "ratio"), [0, 1], [0, 1])).toBeNull();
  });

  it("accept an empty response", () => {
    const none = deviations([], [], "ratio");
    expect(none).toMatchObject({ rows: 0, columns: 0 });
    expect(fullScale(none, [])).toBe(0.1);
    expect(standouts([], [])).toEqual([]);
  });
});

it("uses the median across ranks at each step", () => {
  expect(
    acrossRanks(
      [
        [1, null],
        [3, null],
        [8, 4],
      ],
      2,
    ),
  ).toEqual([3, 4]);
});

describe("words", () => {
  it("name the side and the reference", () => {
    expect(deviationText("ratio", 0.24)).toBe("24% above its peers");
    expect(deviationText("share", -0.034)).toBe("3.4% of a step below its peers");
    expect(deviationText("ratio", Number.NaN)).toBe("no peers");
  });
  it("have a unit", () => {
    expect(valueText(signalOf("forward_seconds"), 0.1234)).toBe("123 ms");
    expect(valueText(signalOf("gradient_norm"), 1.234)).toBe("1.23");
    expect(signalOf("no_such").name).toBe(rankSignals[0]?.name);
  });
});
