/** A job's steps as numbers per rank and as chart lines. */
import type { Job, Steps } from "@/api/types";
import type { Line } from "@/charts/chart-options";
import { median, newest, ratioToPeers } from "@/charts/rank-layout";
import { bytes, integer, plural } from "@/lib/format";
import type { RankMetric } from "./search";

type Scrubbing = NonNullable<NonNullable<Job["protection"]["durability"]>["scrub"]>;

/** One number per rank for the grid. */
export function rankValues(
  job: Job,
  steps: Steps | undefined,
  metric: RankMetric,
): Map<number, number | null> {
  if (!steps) return new Map();
  const table = metric === "step" ? steps.step_time_seconds : steps.compute_time_seconds;
  const values = steps.ranks.map((_, row) => newest(table[row])?.value ?? null);
  if (metric !== "peers") return new Map(steps.ranks.map((rank, i) => [rank, values[i] ?? null]));
  const stage = new Map(job.topology.ranks.map((place) => [place.rank, place.pp]));
  const ratios = ratioToPeers(
    values,
    steps.ranks.map((rank) => stage.get(rank) ?? -1),
  );
  return new Map(steps.ranks.map((rank, i) => [rank, ratios[i] ?? null]));
}

export const MANY = 12;

function across(table: (number | null)[][], count: number) {
  const mid: (number | null)[] = [];
  const low: (number | null)[] = [];
  const high: (number | null)[] = [];
  for (let k = 0; k < count; k += 1) {
    const known = table.map((row) => row[k]).filter((v): v is number => v != null);
    mid.push(median(known));
    low.push(known.length ? Math.min(...known) : null);
    high.push(known.length ? Math.max(...known) : null);
  }
  return { mid, low, high };
}

/** Return one line per rank for few ranks; else the median with the extremes, and the selected rank. */
export function rankLines(steps: Steps, metric: RankMetric, selected: number | undefined): Line[] {
  const table = metric === "step" ? steps.step_time_seconds : steps.compute_time_seconds;
  if (steps.ranks.length <= MANY) {
    return steps.ranks.map((rank, row) => ({
      label: `rank ${rank}`,
      values: table[row] ?? [],
      focus: rank === selected,
    }));
  }
  const { mid, low, high } = across(table, steps.steps.length);
  const lines: Line[] = [{ label: "median, minimum, maximum", values: mid, low, high }];
  const row = selected === undefined ? -1 : steps.ranks.indexOf(selected);
  if (row >= 0) lines.push({ label: `rank ${selected}`, values: table[row] ?? [], focus: true });
  return lines;
}

export interface RankFacts {
  step: number | null;
  compute: number | null;
  typicalStep: number | null;
  typicalCompute: number | null;
  vsPeers: number | null;
}

export function rankFacts(job: Job, steps: Steps | undefined, rank: number): RankFacts | null {
  if (!steps) return null;
  const row = steps.ranks.indexOf(rank);
  const known = (values: (number | null)[] | undefined) =>
    (values ?? []).filter((v): v is number => v !== null);
  return {
    step: newest(steps.step_time_seconds[row])?.value ?? null,
    compute: newest(steps.compute_time_seconds[row])?.value ?? null,
    typicalStep: median(known(steps.step_time_seconds[row])),
    typicalCompute: median(known(steps.compute_time_seconds[row])),
    vsPeers: rankValues(job, steps, "peers").get(rank) ?? null,
  };
}

const NAMED_NODES = 4;

/** Where the ranks are, and what of the job waits to take some. */
export function placementFacts(job: Job): { name: string; value: string }[] {
  const { ranks, standbys, world_size } = job.topology;
  const used = new Set(ranks.map((rank) => rank.node));
  const placement = {
    name: "Placement",
    value: `${plural(world_size, "rank")} on ${plural(used.size, "node")}`,
  };
  if (!standbys) return [placement];
  const spare = Object.keys(standbys).filter((node) => !used.has(node));
  spare.sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const more = spare.length - NAMED_NODES;
  const named = spare.slice(0, NAMED_NODES).join(", ") + (more > 0 ? `, and ${integer(more)} more` : "");
  const waiting = Object.values(standbys).filter((count) => count > 0);
  const total = waiting.reduce((sum, count) => sum + count, 0);
  return [
    placement,
    { name: "Spare nodes", value: named || "none" },
    {
      name: "Warm standbys",
      value: total > 0 ? `${integer(total)} on ${plural(waiting.length, "node")}` : "none",
    },
  ];
}

/** Return the protection of a job as names and values. */
export function protectionFacts(job: Job): { name: string; value: string }[] {
  const { slots, parity_every, parity_group, disk_every, run, warnings } = job.protection;
  return [
    {
      name: "Local memory",
      value: slots > 0 ? `${slots} snapshot slots per rank, outside its process` : "off",
    },
    {
      name: "Parity",
      value:
        parity_every === null
          ? "off: recovery from a node loss needs a data-parallel peer or a checkpoint"
          : `every ${parity_every === 1 ? "step" : `${parity_every} steps`}, across groups of ${parity_group ?? "?"} nodes`,
    },
    {
      name: "Checkpoints",
      value: disk_every === null ? "off" : `every ${disk_every === 1 ? "step" : `${disk_every} steps`}`,
    },
    ...(run ? [{ name: "Run", value: run }] : []),
    ...(warnings ?? []).map((line) => ({ name: "Not covered", value: line })),
  ];
}

/** Return the durability of memory as names and values; empty without a report of the coordinator. */
export function durabilityFacts(job: Job): { name: string; value: string }[] {
  const reported = job.protection.durability;
  if (!reported) return [];
  const behind =
    reported.newest === null || reported.parity_epoch === null
      ? null
      : Math.max(0, reported.newest - reported.parity_epoch);
  const chance =
    reported.survival_hour === null ? "unknown" : survival(reported.survival_hour, reported.exact);
  const disk = reported.disk_epoch === null ? "no complete checkpoint yet" : `step ${reported.disk_epoch}`;
  return [
    { name: "Next hour", value: chance },
    { name: "Survives", value: reported.description },
    {
      name: "Parity",
      value: behind === null ? "no step is protected by parity" : `${plural(behind, "step")} behind`,
    },
    { name: "Checkpoint", value: disk },
    ...scrubFacts(reported.scrub ?? null),
    ...reported.suspects.map((one) => ({
      name: `Warning on ${one.node}`,
      value: `${one.reason}; ${kept(one)}`,
    })),
    ...reported.corrupt_steps
      .filter((one) => one.corrupt)
      .map((one) => ({
        name: `Corrupt steps of ${one.node}`,
        value:
          one.clean === null
            ? `${one.reason}; no clean step is known`
            : `${one.reason}; steps after ${one.clean} are corrupt`,
      })),
    ...reported.degraded.map((line) => ({ name: "Degraded", value: line })),
  ];
}

/** Return the results of scrubbing and restore drills. */
function scrubFacts(reported: Scrubbing | null): { name: string; value: string }[] {
  if (reported === null) return [];
  const drills =
    reported.drills_failed > 0
      ? `; ${plural(reported.drills_failed, "restore drill")} returned wrong bytes`
      : "";
  if (reported.found === 0)
    return [{ name: "Scrubbing", value: `no corruption in ${bytes(reported.bytes)}` }];
  const repaired = `${reported.repaired} of ${plural(reported.found, "corruption")} repaired`;
  const lost = reported.lost > 0 ? `, ${reported.lost} not repairable` : "";
  return [
    { name: "Scrubbing", value: `${repaired}${lost}${drills}` },
    ...reported.nodes.map((one) => ({ name: `Corruption on ${one.node}`, value: one.last })),
  ];
}

function kept(one: { copies: number[]; copies_wanted: number[] }): string {
  if (one.copies_wanted.length === 0) return "no extra copies needed, or not enough memory for them";
  return `extra copies of ${one.copies.length} of ${plural(one.copies_wanted.length, "rank")}`;
}

/** Format a probability near 1: round its difference from 1 to two digits. */
function survival(value: number, exact: boolean): string {
  const risk = (1 - value) * 100;
  const digits = Number(risk.toPrecision(2));
  return `${exact ? "" : "at least "}${Number((100 - digits).toFixed(8))}% probability that memory can restore the job`;
}

export function stateBytes(job: Job): { total: number; most: number } {
  const list = job.protection.state_bytes;
  return { total: list.reduce((a, b) => a + b, 0), most: list.reduce((a, b) => Math.max(a, b), 0) };
}
