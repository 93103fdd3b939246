/** A rank signal as chart lines: the spread of the ranks, and the selected one. */
import type { Line } from "@/charts/chart-options";
import { median } from "@/charts/rank-layout";
import { acrossRanks } from "./peers";
import type { Cell, JobSignals } from "./types";

/** The most ranks with a line each. */
const MANY = 8;

const nothing = (table: readonly (readonly Cell[])[] | undefined) =>
  !table || table.every((row) => row.every((value) => value === null));

/** The loss: the median of the ranks that report it, each for its part of the batch. */
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
      label: "median, minimum, maximum",
      values: columns.map((known) => median(known)),
      low: extreme(Math.min),
      high: extreme(Math.max),
    },
  ];
  const row = rank === undefined ? -1 : data.ranks.indexOf(rank);
  if (row >= 0) lines.push({ label: `rank ${rank}`, values: table[row] ?? [], focus: true });
  return lines;
}
