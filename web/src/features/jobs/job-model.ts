/** A job's steps as numbers per rank and as chart lines. Pure. */
import type { Job, Steps } from "@/api/types";
import type { Line } from "@/charts/chart-options";
import { median, newest, ratioToPeers } from "@/charts/rank-layout";
import { bytes, plural } from "@/lib/format";
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

/** A line per rank while they can be told apart; beyond that the median with the extremes, and the chosen rank. */
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
  const lines: Line[] = [{ label: "median, least and most", values: mid, low, high }];
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

/** The protection of a job as sentences that say what would survive. */
export function protectionFacts(job: Job): { name: string; value: string }[] {
  const { slots, parity_every, parity_group, disk_every, run, warnings } = job.protection;
  return [
    {
      name: "Local memory",
      value: slots > 0 ? `${slots} snapshot slots on every rank, outside its process` : "off",
    },
    {
      name: "Parity",
      value:
        parity_every === null
          ? "off: a lost node needs a data-parallel peer or the disk"
          : `every ${parity_every === 1 ? "step" : `${parity_every} steps`}, across groups of ${parity_group ?? "?"} nodes`,
    },
    {
      name: "Disk",
      value: disk_every === null ? "off" : `every ${disk_every === 1 ? "step" : `${disk_every} steps`}`,
    },
    ...(run ? [{ name: "Run", value: run }] : []),
    ...(warnings ?? []).map((line) => ({ name: "Not covered", value: line })),
  ];
}

/** How safe memory is now, as sentences; empty where the coordinator does not say. Unknown is never good. */
export function durabilityFacts(job: Job): { name: string; value: string }[] {
  const told = job.protection.durability;
  if (!told) return [];
  const behind =
    told.newest === null || told.parity_epoch === null ? null : Math.max(0, told.newest - told.parity_epoch);
  const chance = told.survival_hour === null ? "not known" : survival(told.survival_hour, told.exact);
  const disk = told.disk_epoch === null ? "no whole step yet" : `step ${told.disk_epoch}`;
  return [
    { name: "Next hour", value: `${chance}, from memory alone` },
    { name: "May die", value: told.words },
    {
      name: "Parity",
      value: behind === null ? "no step is protected over the nodes" : `${plural(behind, "step")} behind`,
    },
    { name: "On disk", value: disk },
    ...scrubFacts(told.scrub ?? null),
    ...told.suspects.map((one) => ({
      name: `Distrusted: ${one.node}`,
      value: `${one.reason}; ${kept(one)}`,
    })),
    ...told.taints
      .filter((one) => one.tainted)
      .map((one) => ({
        name: `Tainted by ${one.node}`,
        value:
          one.clean === null
            ? `${one.reason}; no step is known to be clean`
            : `${one.reason}; steps after ${one.clean} are tainted`,
      })),
    ...told.degraded.map((line) => ({ name: "Degraded", value: line })),
  ];
}

/** What reading all snapshot memory again has found. */
function scrubFacts(told: Scrubbing | null): { name: string; value: string }[] {
  if (told === null) return [];
  const drills =
    told.drills_failed > 0 ? `; ${plural(told.drills_failed, "restore drill")} gave back other bytes` : "";
  if (told.found === 0)
    return [{ name: "Scrubbing", value: `nothing found in ${bytes(told.bytes)} read again` }];
  const mended = `${told.mended} of ${plural(told.found, "damage")} mended`;
  const lost = told.lost > 0 ? `, ${told.lost} beyond mending` : "";
  return [
    { name: "Scrubbing", value: `${mended}${lost}${drills}` },
    ...told.nodes.map((one) => ({ name: `Damaged: ${one.node}`, value: one.last })),
  ];
}

function kept(one: { copies: number[]; copies_wanted: number[] }): string {
  if (one.copies_wanted.length === 0) return "no extra copy is needed, or there is no room for one";
  return `extra copies of ${one.copies.length} of ${plural(one.copies_wanted.length, "rank")} are in place`;
}

/** 0.99983 reads as a loss of 0.017 %: near one the difference is what counts. */
function survival(value: number, exact: boolean): string {
  const risk = (1 - value) * 100;
  const digits = Number(risk.toPrecision(2));
  return `${exact ? "" : "at least "}${Number((100 - digits).toFixed(8))} % to lose nothing`;
}

export function stateBytes(job: Job): { total: number; most: number } {
  const list = job.protection.state_bytes;
  return { total: list.reduce((a, b) => a + b, 0), most: list.reduce((a, b) => Math.max(a, b), 0) };
}
