import { describe, expect, it } from "vitest";
import type { Job, Steps } from "@/api/types";
import {
  durabilityFacts,
  placementFacts,
  protectionFacts,
  rankFacts,
  rankLines,
  rankValues,
} from "./job-model";

const rank = (n: number) => ({
  rank: n,
  dp: n >> 1,
  pp: n & 1,
  tp: 0,
  node: "n",
  device: null,
  pid: null,
  state: "running" as const,
});
const job: Job = {
  id: "j",
  name: "j",
  state: "running",
  generation: 1,
  command: "",
  last_step: 3,
  steps_total: 10,
  started_at: 0,
  finished_at: null,
  last_seen_at: 0,
  open_incidents: 0,
  recoveries: 0,
  ettr: null,
  request_obstacles: null,
  topology: { dp: 2, pp: 2, tp: 1, world_size: 4, ranks: [0, 1, 2, 3].map(rank) },
  protection: { slots: 2, parity_every: null, parity_group: null, disk_every: 1, state_bytes: [1, 2, 3, 4] },
};
const steps: Steps = {
  steps: [1, 2, 3],
  ranks: [0, 1, 2, 3],
  loss: [null, null, null],
  step_time_seconds: [
    [1, 1, 1],
    [1, 1, 1],
    [1, 1, null],
    [1, 1, 1],
  ],
  compute_time_seconds: [
    [0.5, 0.5, 0.5],
    [0.8, 0.8, 0.8],
    [0.5, 0.6, 0.75],
    [null, null, null],
  ],
};

describe("ranks", () => {
  it("have their newest value, and none without a measurement", () => {
    expect([...rankValues(job, steps, "compute").values()]).toEqual([0.5, 0.8, 0.75, null]);
    expect(rankValues(job, steps, "step").get(2)).toBe(1);
    expect(rankValues(job, undefined, "step").size).toBe(0);
  });

  it("are compared within their stage", () => {
    const ratios = rankValues(job, steps, "peers");
    expect(ratios.get(2)).toBeCloseTo(1.5);
    expect(ratios.get(1)).toBeNull();
    expect(rankFacts(job, steps, 2)).toMatchObject({ compute: 0.75, typicalCompute: 0.6 });
  });

  it("are one line each for few ranks, else the spread and the selected rank", () => {
    expect(
      rankLines(steps, "compute", 2)
        .filter((l) => l.focus)
        .map((l) => l.label),
    ).toEqual(["rank 2"]);
    const ranks = Array.from({ length: 64 }, (_, i) => i);
    const many = { ...steps, ranks, compute_time_seconds: ranks.map((r) => [r, null, r]) };
    const lines = rankLines(many, "compute", 5);
    expect(lines.map((l) => l.label)).toEqual(["median, minimum, maximum", "rank 5"]);
    expect(lines[0]).toMatchObject({ values: [31.5, null, 31.5], low: [0, null, 0], high: [63, null, 63] });
  });
});

it("describes the protection", () => {
  const text = Object.fromEntries(protectionFacts(job).map((f) => [f.name, f.value]));
  expect(text["Local memory"]).toContain("2 snapshot slots");
  expect(text.Parity).toContain("off");
  expect(text.Checkpoints).toBe("every step");
});

it("names the run, and what the protection does not cover", () => {
  const protection = {
    ...job.protection,
    run: "0199-7c1e",
    warnings: ["the loss of failure domain rack-7 affects 2 ranks"],
  };
  const facts = protectionFacts({ ...job, protection });
  expect(facts.slice(3)).toEqual([
    { name: "Run", value: "0199-7c1e" },
    { name: "Not covered", value: "the loss of failure domain rack-7 affects 2 ranks" },
  ]);
});

it("says where ranks are, and which nodes wait without ranks", () => {
  const placement = { name: "Placement", value: "4 ranks on 1 node" };
  expect(placementFacts(job)).toEqual([placement]);
  const withStandbys = (standbys: Record<string, number>) =>
    placementFacts({ ...job, topology: { ...job.topology, standbys } });
  expect(withStandbys({ n: 0 })).toEqual([
    placement,
    { name: "Spare nodes", value: "none" },
    { name: "Warm standbys", value: "none" },
  ]);
  expect(withStandbys({ n: 1, "n-10": 0, "n-9": 2 })).toEqual([
    placement,
    { name: "Spare nodes", value: "n-9, n-10" },
    { name: "Warm standbys", value: "3 on 2 nodes" },
  ]);
  const many = withStandbys(Object.fromEntries(Array.from({ length: 1000 }, (_, i) => [`n-${i}`, 0])));
  expect(many[1]?.value).toBe("n-0, n-1, n-2, n-3, and 996 more");
});

const scrub = {
  passes: 3,
  bytes: 2 ** 30,
  drills: 4,
  drills_failed: 1,
  found: 3,
  flipped: 2,
  repaired: 2,
  lost: 1,
  nodes: [{ node: "a", found: 3, flipped: 2, repaired: 2, lost: 1, last: "rank 0 was repaired" }],
};

const reported = {
  time: 0,
  survival_hour: 0.99983,
  survival_hour_with_disk: 1,
  exact: true,
  description: "Memory survives the loss of any one node, but not of a and b.",
  min_fatal_nodes: 2,
  fatal: [["a", "b"]],
  newest: 40,
  parity_epoch: 30,
  disk_epoch: null,
  degraded: ["a: slow disk"],
  suspects: [
    { node: "a", reason: "hot", factor: 10, since: 0, ranks: [0, 1], copies_wanted: [0, 1], copies: [0] },
  ],
  corrupt_steps: [{ node: "b", since: 0, reason: "wrong bits", clean: 35, corrupt: true }],
};
const withFigure = (changes: Partial<typeof reported> | { survival_hour: null; parity_epoch: null }) =>
  durabilityFacts({
    ...job,
    protection: { ...job.protection, durability: { ...reported, ...changes } },
  });

describe("durability", () => {
  it("describes which losses memory survives, and the extra copies", () => {
    expect(withFigure({}).map((fact) => fact.value)).toEqual([
      "99.983% probability that memory can restore the job",
      "Memory survives the loss of any one node, but not of a and b.",
      "10 steps behind",
      "no complete checkpoint yet",
      "hot; extra copies of 1 of 2 ranks",
      "wrong bits; steps after 35 are corrupt",
      "a: slow disk",
    ]);
  });
  it("shows unknown values as unknown", () => {
    expect(durabilityFacts(job)).toEqual([]);
    const values = withFigure({ survival_hour: null, parity_epoch: null }).map((fact) => fact.value);
    expect(values[0]).toBe("unknown");
    expect(values[2]).toBe("no step is protected by parity");
  });
  it("describes the results of scrubbing", () => {
    const facts = (changes: Partial<typeof scrub>) =>
      durabilityFacts({
        ...job,
        protection: { ...job.protection, durability: { ...reported, scrub: { ...scrub, ...changes } } },
      }).filter((fact) => /Scrubbing|Corruption/.test(fact.name));
    expect(facts({})).toEqual([
      {
        name: "Scrubbing",
        value: "2 of 3 corruptions repaired, 1 not repairable; 1 restore drill returned wrong bytes",
      },
      { name: "Corruption on a", value: "rank 0 was repaired" },
    ]);
    expect(facts({ found: 0, nodes: [] })[0]?.value).toBe("no corruption in 1.00 GiB");
  });
  it("marks a lower bound with 'at least'", () => {
    expect(withFigure({ exact: false })[0]?.value).toMatch(/^at least 99.983%/);
  });
});
