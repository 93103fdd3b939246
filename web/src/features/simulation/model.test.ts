import { describe, expect, it } from "vitest";
import type { Job, RecoveryPolicy, Simulation } from "@/api/types";
import {
  fieldsOf,
  headline,
  lostTotal,
  numbersOf,
  question,
  type Result,
  seriesOf,
  shapeProblem,
  USUAL,
} from "./model";

const policy = (name: RecoveryPolicy["name"], description: string): RecoveryPolicy => ({
  name,
  description,
  save_s: 30,
  restart_s: 25.15,
  every_s: null,
  rejoin_s: 0,
  without_spare: "wait",
  from_peer: false,
});

const result = (name: RecoveryPolicy["name"], description: string, mean: number, half: number): Result => ({
  policy: policy(name, description),
  interval_s: 4,
  impossible: null,
  ettr: { mean, low: mean - half, high: mean + half, spread: half, runs: 20 },
  exact: mean,
  of_all_gpus: mean,
  interruptions: 3,
  waits: 0,
  useful_gpu_hours: 1,
  lost_gpu_hours: { saving: 1, downtime: 2, repeated: 3, waiting: 4, degraded: 5 },
  curve: [mean],
});

const answer = (policies: Result[]): Simulation => ({
  days: 2,
  gpus: 16,
  failures: 3,
  policies,
  curve_days: [1],
  sweep_over: null,
  sweep: [],
});

const disk = result("disk_restart", "restart from disk", 0.9, 0.01);
const swap = result("standby_swap", "swap to a warm standby", 0.99, 0.001);

describe("a simulation", () => {
  it("sends the form, the own policy only if selected", () => {
    const fields = fieldsOf([disk.policy, policy("own", "yours")], USUAL);
    const asked = question({ ...fields, vary: "nothing" });
    expect(asked).toMatchObject({ nodes: 2048, gpus_per_node: 8, mtbf_hours: 6000, sweep: null });
    expect(asked.policies).toEqual([{ name: "disk_restart", save_s: 30, restart_s: 25.15 }]);
    expect(question(fields).sweep).toEqual({ over: "spares" });
  });

  it("copies shape and step time from a job", () => {
    const place = (rank: number, node: string) => ({ rank, node }) as Job["topology"]["ranks"][number];
    const topology = {
      dp: 2,
      pp: 2,
      tp: 1,
      world_size: 4,
      ranks: [0, 1, 2, 3].map((r) => place(r, r < 2 ? "a" : "b")),
    };
    const steps = {
      step_time_seconds: [
        [0.5, null],
        [0.7, 0.6],
      ],
    } as never;
    expect(numbersOf({ topology } as Job, steps)).toMatchObject({
      nodes: "2",
      gpus: "2",
      dp: "2",
      pp: "2",
      tp: "1",
      iteration: "0.6",
      spares: "1",
    });
    expect(numbersOf({ topology } as Job, undefined).iteration).toBe(USUAL.iteration);
  });

  it("reports a shape that does not fit", () => {
    expect(shapeProblem(USUAL)).toBeNull();
    expect(shapeProblem({ ...USUAL, dp: "1" })).toBe(
      "1 × 16 × 8 is 128 ranks, but the nodes have 16384 GPUs.",
    );
  });

  it("names the best policy, and those without a clear difference", () => {
    expect(headline(answer([disk, swap]))).toBe(
      "Swap to a warm standby has an ETTR of 99.00% over 2 d, ahead of restart from disk with 90.00%.",
    );
    const near = result("reroute", "re-route micro-batches", 0.9895, 0.001);
    expect(headline(answer([disk, swap, near]))).toContain(
      "; re-route micro-batches is not clearly different.",
    );
    const never = { ...swap, ettr: null, impossible: "no peer" };
    expect(headline(answer([never]))).toBe("No selected policy is possible for this job.");
  });

  it("sums lost time", () => {
    expect(lostTotal(disk)).toBe(15);
    expect(lostTotal({ lost_gpu_hours: null })).toBe(0);
  });

  it("draws the varied parameter, else time", () => {
    expect(seriesOf(answer([disk]))[0]?.points).toEqual([{ x: 1, mean: 0.9, low: 0.9, high: 0.9 }]);
    const estimate = { mean: 0.5, low: 0.4, high: 0.6, spread: 0.1, runs: 2 };
    const swept: Simulation = {
      ...answer([disk, { ...swap, ettr: null }]),
      sweep_over: "spares",
      sweep: [{ value: 0, ettr: { disk_restart: estimate } }],
    };
    expect(seriesOf(swept)).toEqual([
      {
        name: "disk_restart",
        description: "restart from disk",
        points: [{ x: 0, mean: 0.5, low: 0.4, high: 0.6 }],
      },
    ]);
  });
});
