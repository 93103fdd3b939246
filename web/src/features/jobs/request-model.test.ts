import { describe, expect, it } from "vitest";
import type { Job, JobRequest } from "@/api/types";
import { named, obstacleTo, subjectOf, subjects } from "./request-model";

const job = {
  topology: {
    ranks: [
      { rank: 0, node: "b" },
      { rank: 1, node: "a" },
    ],
    standbys: { a: 0, c: 1 },
  },
  request_obstacles: { save: "there is no --checkpoint-dir", restore: "" },
} as unknown as Job;

const one = (fields: Partial<JobRequest>) =>
  ({ node: null, rank: null, target: null, stages: [], dp: 0, pp: 0, tp: 0, ...fields }) as JobRequest;

describe("requests to a job", () => {
  it("say what they are about", () => {
    expect(subjectOf(one({ kind: "migrate", rank: 3, target: "c" }))).toBe("Migrate ranks: rank 3 to c");
    expect(subjectOf(one({ kind: "degrade", node: "a" }))).toBe("Continue without a node: a");
    expect(subjectOf(one({ kind: "reshape", dp: 1, tp: 4 }))).toBe("Change the shape: dp 1, tp 4");
    expect(subjectOf(one({ kind: "reshape", stages: [3, 2] }))).toBe("Change the shape: stages 3, 2");
    expect(subjectOf(one({ kind: "save" }))).toBe("Save a checkpoint");
  });

  it("name a node with a standby too, and ranks where the kind allows", () => {
    expect(subjects(job, "node").map((option) => option.label)).toEqual(["a", "b", "c"]);
    expect(subjects(job, "any").map((option) => option.value)).toEqual([
      "node:a",
      "node:b",
      "node:c",
      "rank:0",
      "rank:1",
    ]);
    expect(named("node:gpu:7")).toEqual({ node: "gpu:7" });
    expect(named("rank:12")).toEqual({ rank: 12 });
    expect(named("")).toEqual({});
  });

  it("tell why the job cannot, and nothing where it does not say", () => {
    expect(obstacleTo(job, "save")).toBe("there is no --checkpoint-dir");
    expect(obstacleTo(job, "restore")).toBe("");
    expect(obstacleTo({ ...job, request_obstacles: null } as Job, "save")).toBe("");
  });
});
