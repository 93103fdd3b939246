import { describe, expect, it } from "vitest";
import type { CheckpointStep, Job } from "@/api/types";
import {
  deletionOf,
  deletionSeconds,
  deletionSentences,
  deletionText,
  nextRestoreText,
  stepsOf,
} from "./checkpoint-restore";

const step = (number: number, changes: Partial<CheckpointStep> = {}): CheckpointStep => ({
  step: number,
  state: "complete",
  problem: "",
  time: 1000,
  ranks: 4,
  disk_bytes: 1,
  parity_bytes: 0,
  full_bytes: 1,
  read_bytes: 1,
  levels: ["local"],
  pinned: false,
  bases: [],
  unreadable: [],
  previous: number > 10 ? number - 10 : null,
  serves_recovery: true,
  restore_seconds: null,
  seconds_lost: 12,
  nodes: ["a"],
  node_count: 1,
  survives: "",
  ...changes,
});
const bound = { bits: 8, absolute: 0.001, relative: 0.02 };
const cost = (of: CheckpointStep, steps: CheckpointStep[]) => deletionText(of, deletionOf(of, steps));

describe("the next restore", () => {
  const incomplete = step(40, { state: "incomplete", serves_recovery: false });
  it("takes the newest step that can be restored", () => {
    expect(nextRestoreText([incomplete, step(30), step(20)])).toBe(
      "The next restore from disk takes step 30: a recovery of the job, or a new start with --resume.",
    );
    expect(nextRestoreText([incomplete])).toBe("No step of this run can be restored.");
  });
  it("takes another step for a recovery than for a new start", () => {
    const near = step(30, { quantized: bound, serves_recovery: false });
    expect(nextRestoreText([near, step(20)])).toBe(
      "A recovery of the job takes step 20; a new start with --resume --accept-quantized takes step 30.",
    );
    expect(nextRestoreText([near])).toBe(
      "A new start with --resume --accept-quantized takes step 30. No step of this run serves a recovery of the running job.",
    );
  });
  it("is a new start once the job has ended", () => {
    const ended = stepsOf({ finished_at: 5 } as Job, [step(30)]);
    expect(nextRestoreText(ended)).toBe("A new start with --resume takes step 30.");
    expect(stepsOf({ finished_at: null } as Job, [step(30)])).toEqual([step(30)]);
  });
});

describe("a deletion", () => {
  it("costs training where the next restore takes the step", () => {
    const steps = [step(30), step(20), step(10)];
    expect(steps.map((one) => cost(one, steps))).toEqual(["12.0 s", "nothing now", "nothing now"]);
    expect(deletionSentences(steps[0] as CheckpointStep, steps)).toEqual([
      "All other steps stay readable.",
      "The next restore then continues from step 20, not from step 30: 12.0 s of training is lost.",
    ]);
    expect(deletionSentences(steps[1] as CheckpointStep, steps)[1]).toBe(
      "The next restore still takes step 30. This step counts only if all newer ones are lost.",
    );
    expect(cost(step(10), [step(10)])).toBe("12.0 s");
    expect(deletionSentences(step(10), [step(10)])[1]).toContain(
      "from the start of training, not from step 10",
    );
  });
  it("takes all steps that are built on it, also those that the report does not name", () => {
    const steps = [
      step(50, { bases: [20, 30, 40] }),
      step(40, { bases: [20, 30] }),
      step(30, { bases: [20] }),
      step(20, { unreadable: [30, 40] }),
      step(10),
    ];
    expect(steps.map((one) => cost(one, steps))).toEqual([
      "12.0 s",
      "24.0 s, 1 later step",
      "36.0 s, 2 later steps",
      "48.0 s, 3 later steps",
      "nothing now",
    ]);
    expect(deletionSentences(steps[3] as CheckpointStep, steps)).toEqual([
      "Later steps that cannot be read without it: 30, 40, 50.",
      "The next restore then continues from step 10, not from step 50: 48.0 s of training is lost.",
    ]);
    expect(
      cost(step(20, { unreadable: [30] }), [step(40), step(30, { bases: [20] }), step(20), step(10)]),
    ).toBe("nothing now, 1 later step");
  });
  it("goes back to a step that is not listed, past one that is", () => {
    const steps = [step(90), step(10, { pinned: true })];
    expect(deletionSentences(step(90), steps)[1]).toContain("continues from step 80, not from step 90");
  });
  it("costs a recovery and a new start differently", () => {
    const near = step(30, { quantized: bound, serves_recovery: false });
    const steps = [near, step(20, { quantized: bound }), step(10)];
    expect(deletionSentences(near, steps)[1]).toBe(
      "A new start with --resume --accept-quantized then continues from step 20, not from step 30: 12.0 s of training is lost.",
    );
    expect(deletionSentences(steps[1] as CheckpointStep, steps)[1]).toBe(
      "A recovery of the job then continues from step 10, not from step 20: 12.0 s of training is lost.",
    );
    expect(steps.map((one) => cost(one, steps))).toEqual(["12.0 s", "12.0 s", "nothing now"]);
  });
  it("of an unknown time is unknown, and sorts as the most", () => {
    const steps = [step(20, { seconds_lost: null }), step(10)];
    expect(steps.map((one) => cost(one, steps))).toEqual(["unknown", "nothing now"]);
    expect(deletionSeconds(deletionOf(steps[0] as CheckpointStep, steps))).toBeGreaterThan(1e12);
  });
  it("of a step that is not complete costs nothing, unless it is being written", () => {
    const incomplete = step(20, { state: "incomplete" });
    expect(cost(incomplete, [incomplete, step(10)])).toBe("nothing");
    expect(deletionSentences(incomplete, [])[0]).toContain("unless it is being written now");
  });
});
