import { describe, expect, it } from "vitest";
import type { CheckpointStep, Checkpoints, Job } from "@/api/types";
import {
  deletionSentences,
  deletionText,
  directoryFacts,
  isStale,
  levelText,
  newestUsable,
  restoreText,
  sizeText,
  survivesText,
  usedByText,
  valuesText,
} from "./checkpoint-model";

const step: CheckpointStep = {
  step: 40,
  state: "complete",
  problem: "",
  time: 1000,
  ranks: 4,
  disk_bytes: 1 << 20,
  parity_bytes: 0,
  full_bytes: 1 << 20,
  read_bytes: 1 << 18,
  levels: ["local"],
  pinned: false,
  bases: [],
  unreadable: [],
  previous: 30,
  restore_seconds: 1.5,
  seconds_lost: 12,
  nodes: ["a"],
  node_count: 1,
  survives: "the loss of any nodes",
};
const reported: Checkpoints = {
  run: "0199",
  directory: "/checkpoints",
  upload: null,
  time: 1000,
  steps: [{ ...step, step: 50, state: "incomplete" }, step],
  omitted: 0,
};

describe("a step", () => {
  it("has a level in words, and unknown is no level", () => {
    const text = (...levels: CheckpointStep["levels"]) => levelText({ ...step, levels });
    expect([text("local"), text("upload"), text("local", "upload"), text()]).toEqual([
      "Directory",
      "Upload",
      "Directory, upload",
      "unknown",
    ]);
  });
  it("gives its size as a share of the state only where it is smaller", () => {
    expect(sizeText(step)).toBe("1.00 MiB");
    expect(sizeText({ ...step, full_bytes: 1 << 22 })).toBe("1.00 MiB (25%)");
    expect(sizeText({ ...step, full_bytes: null })).toBe("1.00 MiB");
  });
  it("says how far quantized values may be from those that were saved", () => {
    const bound = { bits: 8, absolute: 0.0012, relative: 0.021 };
    expect(valuesText({ ...step, quantized: bound })).toBe(
      "quantized to 8 bits, with errors of at most 0.0012, or 2.1% of the value",
    );
    expect(valuesText({ ...step, quantized: null })).toBe("the bits that were saved");
    expect(valuesText({ ...step, state: "incomplete" })).toBe("unknown");
  });
  it("shows unknown values as unknown", () => {
    const unknown = { ...step, restore_seconds: null, seconds_lost: null, survives: "" };
    expect([restoreText(unknown), survivesText(unknown), deletionText(unknown)]).toEqual([
      "unknown",
      "unknown",
      "an unknown time",
    ]);
    expect([restoreText(step), survivesText(step)]).toEqual(["1.50 s", "the loss of any nodes"]);
  });
  it("says what its deletion costs", () => {
    expect(deletionText(step)).toBe("12.0 s");
    expect(deletionText({ ...step, unreadable: [50, 60] })).toBe("12.0 s, 2 steps");
    expect(deletionSentences({ ...step, unreadable: [50, 60], previous: null }, [])).toEqual([
      "Steps that cannot be read without it: 50, 60.",
      "A job that needs it goes back to the start of training: 12.0 s of training.",
    ]);
    expect(deletionSentences(step, [])[0]).toBe("All other steps stay readable.");
    expect(deletionText({ ...step, state: "incomplete" })).toBe("nothing");
  });
  it("is no step that a running job goes back to where it is quantized, or at the upload level alone", () => {
    const quantized = { bits: 8, absolute: 0.001, relative: 0.02 };
    const [near, exact] = [
      { ...step, step: 30, quantized, serves_recovery: false },
      { ...step, serves_recovery: false },
    ];
    const cost = (of: CheckpointStep, ...others: CheckpointStep[]) => deletionSentences(of, others)[1];
    expect(cost({ ...near, step: 40 }, near)).toBe(
      "Only a new start with --resume --accept-quantized goes back to step 30: 12.0 s of training.",
    );
    expect(cost({ ...exact, serves_recovery: true }, near)).toContain(
      "--resume --accept-quantized goes back",
    );
    expect(cost(exact)).toBe("Only a new start with --resume goes back to step 30: 12.0 s of training.");
    expect(cost({ ...step, serves_recovery: true })).toContain("A job that needs it goes back to step 30");
    expect([near, { ...near, serves_recovery: null }, exact, step].map(usedByText)).toEqual([
      "only a new start with --resume --accept-quantized: a running job never goes back to it",
      "only a new start with --resume --accept-quantized: a running job never goes back to it",
      "only a new start with --resume: a running job never goes back to it",
      "--resume",
    ]);
    expect(usedByText({ ...exact, serves_recovery: true })).toBe(
      "a recovery of the running job, or --resume",
    );
    expect(usedByText({ ...near, serves_recovery: true })).toContain(
      "running job, or --resume --accept-quantized",
    );
    expect(usedByText({ ...step, state: "on_nodes" })).toBe(
      "a recovery of the running job, or --resume if the step is not encoded",
    );
    expect(usedByText({ ...step, state: "incomplete" })).toBe("nothing: it is not complete");
  });
});

describe("a report", () => {
  const job = (finished_at: number | null) => ({ finished_at }) as Job;
  it("is stale while the job runs and the directory was not read lately", () => {
    expect(isStale(job(null), reported, 1080)).toBe(false);
    expect(isStale(job(null), reported, 1100)).toBe(true);
    expect(isStale(job(1010), reported, 9999)).toBe(false);
  });
  it("names the directory and counts its steps", () => {
    expect(newestUsable(reported.steps)?.step).toBe(40);
    expect(directoryFacts(reported).map((fact) => fact.value)).toEqual([
      "/checkpoints",
      "none",
      "0199",
      "1 usable step, 1 other, 2.00 MiB on disk",
    ]);
    const protectedStep = { ...step, parity_bytes: 1 << 19 };
    expect(directoryFacts({ ...reported, steps: [protectedStep] })[3]?.value).toBe(
      "1 usable step, 1.00 MiB on disk, 512 KiB of it parity",
    );
  });
  it("names nodes whose uploads fail, the first of many", () => {
    const problems = ["a", "b", "c", "d", "e"].map((node) => ({ node, problem: "refused", since: 0 }));
    const facts = directoryFacts({ ...reported, upload_problems: problems });
    const failing = facts.filter((fact) => fact.name.startsWith("Upload fails"));
    expect(failing.map((fact) => fact.name.at(-1))).toEqual(["a", "b", "c", "d"]);
    expect(failing[0]?.value).toMatch(/^since .*: refused$/);
  });
});
