/** A rank signal as chart lines: the ranks' spread, and the one that is looked at. Pure. */
import type { Line } from "@/charts/chart-options";
import { median } from "@/charts/rank-layout";
import { acrossRanks } from "./peers";
import type { Cell, JobSignals } from "./types";

/** Ranks that can be told apart as lines of their own. */
const MANY = 8;

const nothing = (table: readonly (readonly Cell[])[] | undefined) =>
  !table || table.every((row) => row.every((value) => value === null));

/** The loss: most ranks do not know it, and those that do hold their own part of the batch; their median is the job's. */
export function lossLine(data: JobSignals): Line[] | null {
  const table = data.signals.loss;
  if (!table || nothing(table)) return null;
  return [{ label: "loss", values: acrossRanks(table, data.steps.length) }];
}

export function spreadLines(data: JobSignals, name: string, rank: number | undefined): Line[] | null {
  const table = data.signals[name];
  if (!table || nothing(table)) return null;
  if (data.ranks.length <= MANY) {
    return data.ranks.map((r, row) => ({
      label: `rank ${r}`,
      values: table[row] ?? [],
      focus: r === rank,
    }));
  }
  const columns = data.steps.map((_, k) => table.map((row) => row[k]).filter((v): v is number => v != null));
  const extreme = (pick: (a: number, b: number) => number) =>
    columns.map((known) => (known.length === 0 ? null : known.reduce((a, b) => pick(a, b))));
  const lines: Line[] = [
    {
      label: "median, least and most",
      values: columns.map((known) => median(known)),
      low: extreme(Math.min),
      high: extreme(Math.max),
    },
  ];
  const row = rank === undefined ? -1 : data.ranks.indexOf(rank);
  if (row >= 0) lines.push({ label: `rank ${rank}`, values: table[row] ?? [], focus: true });
  return lines;
}
