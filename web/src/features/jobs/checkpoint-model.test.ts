import { describe, expect, it } from "vitest";
import type { CheckpointStep, Checkpoints, Job } from "@/api/types";
import {
  directoryFacts,
  isStale,
  levelText,
  restoreSentence,
  restoreText,
  sizeText,
  stepsText,
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
    expect(valuesText({ ...step, quantized: null })).toBe("exact: the bits that were saved");
    expect(valuesText({ ...step, state: "incomplete" })).toBe("unknown");
  });
  it("shows unknown values as unknown", () => {
    const unknown = { ...step, restore_seconds: null, survives: "" };
    expect([restoreText(unknown), survivesText(unknown)]).toEqual(["unknown", "unknown"]);
    expect([restoreText(step), survivesText(step)]).toEqual(["1.50 s", "the loss of any nodes"]);
    expect([step, unknown, { ...unknown, levels: ["upload" as const] }].map(restoreSentence)).toEqual([
      "1.50 s",
      "unknown before the first restore from this directory",
      "unknown: it must be downloaded first",
    ]);
  });
  it("names few steps, and counts many", () => {
    expect([[], [10, 20], [0, 10, 20, 30, 1040]].map(stepsText)).toEqual([
      "",
      "10, 20",
      "0 to 1\u202f040 (5 steps)",
    ]);
  });
  it("says what continues from it", () => {
    const quantized = { bits: 8, absolute: 0.001, relative: 0.02 };
    const [near, exact] = [
      { ...step, step: 30, quantized, serves_recovery: false },
      { ...step, serves_recovery: false },
    ];
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
