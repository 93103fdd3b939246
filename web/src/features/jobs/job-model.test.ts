import { describe, expect, it } from "vitest";
import type { Job, Steps } from "@/api/types";
import { durabilityFacts, protectionFacts, rankFacts, rankLines, rankValues } from "./job-model";

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
  effective_ratio: null,
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
  it("have their newest value, and none where nothing was measured", () => {
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

  it("are one line each while they can be told apart, else the spread and the chosen one", () => {
    expect(
      rankLines(steps, "compute", 2)
        .filter((l) => l.focus)
        .map((l) => l.label),
    ).toEqual(["rank 2"]);
    const ranks = Array.from({ length: 64 }, (_, i) => i);
    const many = { ...steps, ranks, compute_time_seconds: ranks.map((r) => [r, null, r]) };
    const lines = rankLines(many, "compute", 5);
    expect(lines.map((l) => l.label)).toEqual(["median, least and most", "rank 5"]);
    expect(lines[0]).toMatchObject({ values: [31.5, null, 31.5], low: [0, null, 0], high: [63, null, 63] });
  });
});

it("says what would survive in words", () => {
  const text = Object.fromEntries(protectionFacts(job).map((f) => [f.name, f.value]));
  expect(text["Local memory"]).toContain("2 snapshot slots");
  expect(text.Parity).toContain("off");
  expect(text.Disk).toBe("every step");
});

it("names the run on disk, and what the scheme does not cover", () => {
  const protection = {
    ...job.protection,
    run: "0199-7c1e",
    warnings: ["the loss of domain rack-7 would take 2 ranks"],
  };
  const facts = protectionFacts({ ...job, protection });
  expect(facts.slice(3)).toEqual([
    { name: "Run", value: "0199-7c1e" },
    { name: "Not covered", value: "the loss of domain rack-7 would take 2 ranks" },
  ]);
});

const scrub = {
  passes: 3,
  bytes: 2 ** 30,
  drills: 4,
  drills_failed: 1,
  found: 3,
  flipped: 2,
  mended: 2,
  lost: 1,
  nodes: [{ node: "a", found: 3, flipped: 2, mended: 2, lost: 1, last: "rank 0 was mended" }],
};

const told = {
  time: 0,
  survival_hour: 0.99983,
  survival_hour_with_disk: 1,
  exact: true,
  words: "Memory outlives the loss of any one node, not of a with b.",
  least: 2,
  fatal: [["a", "b"]],
  newest: 40,
  parity_epoch: 30,
  disk_epoch: null,
  degraded: ["a: slow disk"],
  suspects: [
    { node: "a", reason: "hot", factor: 10, since: 0, ranks: [0, 1], copies_wanted: [0, 1], copies: [0] },
  ],
  taints: [{ node: "b", since: 0, reason: "wrong bits", clean: 35, tainted: true }],
};
const withFigure = (changes: Partial<typeof told> | { survival_hour: null; parity_epoch: null }) =>
  durabilityFacts({
    ...job,
    protection: { ...job.protection, durability: { ...told, ...changes } },
  });

describe("durability in words", () => {
  it("says what may die now, and what is done about it", () => {
    expect(withFigure({}).map((fact) => fact.value)).toEqual([
      "99.983 % to lose nothing, from memory alone",
      "Memory outlives the loss of any one node, not of a with b.",
      "10 steps behind",
      "no whole step yet",
      "hot; extra copies of 1 of 2 ranks are in place",
      "wrong bits; steps after 35 are tainted",
      "a: slow disk",
    ]);
  });
  it("claims nothing that is not known", () => {
    expect(durabilityFacts(job)).toEqual([]);
    const values = withFigure({ survival_hour: null, parity_epoch: null }).map((fact) => fact.value);
    expect(values[0]).toBe("not known, from memory alone");
    expect(values[2]).toBe("no step is protected over the nodes");
  });
  it("says what scrubbing has found", () => {
    const facts = (changes: Partial<typeof scrub>) =>
      durabilityFacts({
        ...job,
        protection: { ...job.protection, durability: { ...told, scrub: { ...scrub, ...changes } } },
      }).filter((fact) => /Scrubbing|Damaged/.test(fact.name));
    expect(facts({})).toEqual([
      {
        name: "Scrubbing",
        value: "2 of 3 damages mended, 1 beyond mending; 1 restore drill gave back other bytes",
      },
      { name: "Damaged: a", value: "rank 0 was mended" },
    ]);
    expect(facts({ found: 0, nodes: [] })[0]?.value).toBe("nothing found in 1.00 GiB read again");
  });
  it("says at least where it is a lower bound", () => {
    expect(withFigure({ exact: false })[0]?.value).toMatch(/^at least 99.983 %/);
  });
});
