/** The map of ranks over steps, computed once per response and size. */
import type { Job } from "@/api/types";
import { divergingColor, pack } from "@/charts/color";
import { type Bin, binsFor, evenBins, type Place } from "@/charts/matrix-layout";
import { CLEAR } from "@/charts/matrix-paint";
import {
  acrossRanks,
  type Deviations,
  deviations,
  fullScale,
  lately,
  type Standout,
  standouts,
  worstIn,
} from "./peers";
import { deviationText, type RankSignal, signalOf, valueText } from "./rank-signals";
import type { Cell, JobSignals } from "./types";

/** The minimum height of a row and width of a column, in CSS pixels. */
const LEAST_ROW = 2;
const LEAST_COLUMN = 1.5;
const RECENT = 20;

export interface SignalPicture {
  signal: RankSignal;
  ranks: number[];
  steps: number[];
  rowBins: Bin[];
  columnBins: Bin[];
  /** The largest deviation of each drawn cell, row-major; NaN if unknown. */
  shown: Float64Array;
  scale: number;
  standouts: Standout[];
  /** The number of values, and of values with peers. */
  known: number;
  compared: number;
  table: Cell[][];
  nodes: string[];
  found: Deviations;
  rankAt: (row: number, column: number) => number | undefined;
}

export function signalPicture(
  data: JobSignals,
  name: string,
  topology: Job["topology"],
  room: { width: number; maxHeight: number },
): SignalPicture {
  const signal = signalOf(name);
  const table = data.signals[signal.name] ?? data.ranks.map(() => []);
  const places = new Map(topology.ranks.map((place) => [place.rank, place]));
  const roles = data.ranks.map((rank) => places.get(rank)?.pp ?? -1);
  const nodes = data.ranks.map((rank) => places.get(rank)?.node ?? "?");
  const stepSeconds =
    signal.against === "share" ? acrossRanks(data.signals.step_time_seconds ?? [], data.steps.length) : [];
  const found = deviations(table, roles, signal.against, stepSeconds);
  const recent = lately(found, RECENT);
  const rowBins = binsFor(nodes, Math.max(1, Math.floor(room.maxHeight / LEAST_ROW)));
  const columnBins = evenBins(data.steps.length, Math.max(1, Math.floor(room.width / LEAST_COLUMN)));
  const shown = new Float64Array(rowBins.length * columnBins.length).fill(Number.NaN);
  rowBins.forEach((rows, row) => {
    columnBins.forEach((columns, column) => {
      const worst = worstIn(found, rows, columns);
      if (worst) shown[row * columnBins.length + column] = worst.value;
    });
  });
  const rankAt = (row: number, column: number) => {
    const [rows, columns] = [rowBins[row], columnBins[column]];
    if (!rows || !columns) return undefined;
    return data.ranks[worstIn(found, rows, columns)?.row ?? rows[0]];
  };
  return {
    signal,
    ranks: data.ranks,
    steps: data.steps,
    rowBins,
    columnBins,
    shown,
    scale: fullScale(found, recent),
    standouts: standouts(data.ranks, recent),
    known: table.reduce((sum, row) => sum + row.filter((v) => v !== null).length, 0),
    compared: found.values.reduce((sum, v) => sum + (Number.isNaN(v) ? 0 : 1), 0),
    table,
    nodes,
    found,
    rankAt,
  };
}

/** Return the color of a drawn cell. */
export function cellColor(picture: SignalPicture, dark: boolean): (row: number, column: number) => number {
  const columns = picture.columnBins.length;
  return (row, column) => {
    const value = picture.shown[row * columns + column] as number;
    return Number.isNaN(value) ? CLEAR : pack(divergingColor(value / picture.scale, dark));
  };
}

/** Return a drawn cell as text with its exact value; of several ranks or steps, the one with the largest deviation. */
export function cellText(picture: SignalPicture, { row, column }: Place): string {
  const [rows, columns] = [picture.rowBins[row], picture.columnBins[column]];
  if (!rows || !columns) return "";
  const worst = worstIn(picture.found, rows, columns);
  const at = worst ?? { row: rows[0], column: columns[0], value: Number.NaN };
  const value = picture.table[at.row]?.[at.column] ?? null;
  const many = rows[1] - rows[0];
  const head = `rank ${picture.ranks[at.row]} on ${picture.nodes[at.row]}, step ${picture.steps[at.column]}`;
  const said = value === null ? "unknown" : valueText(picture.signal, value);
  const against =
    value === null ? "" : `, ${deviationText(picture.signal.against, worst ? worst.value : null)}`;
  return `${head}: ${said}${against}${many > 1 ? ` (largest deviation of ${many} ranks)` : ""}`;
}
