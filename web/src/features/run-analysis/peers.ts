/** Each cell relative to the other ranks of its stage at the same step: a straggler becomes a line. */
import { median } from "@/charts/rank-layout";
import type { Against } from "./rank-signals";
import type { Cell } from "./types";

/** Deviations [rank × step], row-major; NaN where a value or its peers are missing. */
export interface Deviations {
  rows: number;
  columns: number;
  values: Float64Array;
}

/** Return the median of a sorted list without the element at `skip`; NaN for a single element. */
function medianWithout(sorted: readonly number[], skip: number): number {
  const n = sorted.length - 1;
  if (n <= 0) return Number.NaN;
  const at = (i: number) => sorted[i < skip ? i : i + 1] as number;
  const middle = n >> 1;
  return n % 2 ? at(middle) : (at(middle - 1) + at(middle)) / 2;
}

/**
 * Compare `table[rank][step]` with the median of the other ranks of the same stage: as a ratio (0.24 is 24% more), or,
 * for waits, as a ratio of the job's median step time at that step.
 */
export function deviations(
  table: readonly (readonly Cell[])[],
  roles: readonly number[],
  against: Against,
  stepSeconds: readonly Cell[] = [],
): Deviations {
  const rows = table.length;
  const columns = table.reduce((most, row) => Math.max(most, row.length), 0);
  const values = new Float64Array(rows * columns).fill(Number.NaN);
  const groups = new Map<number, number[]>();
  roles.slice(0, rows).forEach((role, row) => {
    const members = groups.get(role);
    if (members) members.push(row);
    else groups.set(role, [row]);
  });
  for (let column = 0; column < columns; column += 1) {
    for (const members of groups.values()) {
      const known = members
        .map((row) => ({ row, value: table[row]?.[column] }))
        .filter((cell): cell is { row: number; value: number } => cell.value != null)
        .sort((a, b) => a.value - b.value);
      const sorted = known.map((cell) => cell.value);
      known.forEach(({ row, value }, place) => {
        const reference = medianWithout(sorted, place);
        const scale = against === "ratio" ? reference : (stepSeconds[column] ?? Number.NaN);
        if (scale > 0) values[row * columns + column] = (value - reference) / scale;
      });
    }
  }
  return { rows, columns, values };
}

/** The median over ranks at each step. */
export function acrossRanks(table: readonly (readonly Cell[])[], columns: number): Cell[] {
  return Array.from({ length: columns }, (_, k) =>
    median(table.map((row) => row[k]).filter((v): v is number => v != null)),
  );
}

/** Return each rank's median deviation over its last `last` known steps; NaN without any. */
export function lately(found: Deviations, last: number): number[] {
  return Array.from({ length: found.rows }, (_, row) => {
    const own: number[] = [];
    for (let k = found.columns - 1; k >= 0 && own.length < last; k -= 1) {
      const value = found.values[row * found.columns + k] as number;
      if (!Number.isNaN(value)) own.push(value);
    }
    return median(own) ?? Number.NaN;
  });
}

const NICE = [0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1, 1.5, 2];

/**
 * Return the deviation with full color, at least 10%, so that noise does not look like a fault. Single cells count
 * up to their 99th percentile, so that one extreme step does not hide a straggler.
 */
export function fullScale(found: Deviations, recent: readonly number[]): number {
  const sizes = found.values
    .filter((v) => !Number.isNaN(v))
    .map(Math.abs)
    .sort();
  const cells = sizes[Math.floor((sizes.length - 1) * 0.99)] ?? 0;
  const rows = recent.reduce((most, v) => (Number.isNaN(v) ? most : Math.max(most, Math.abs(v))), 0);
  const wanted = Math.max(cells, rows);
  return NICE.find((limit) => limit >= wanted) ?? (NICE.at(-1) as number);
}

export interface Standout {
  rank: number;
  deviation: number;
}

/** Return the ranks with a recent median far from the others: at least 3%, and four times the spread of the ranks. */
export function standouts(ranks: readonly number[], recent: readonly number[], most = 5): Standout[] {
  const known = recent.filter((v) => !Number.isNaN(v));
  const spread = (median(known.map(Math.abs)) ?? 0) * 1.4826;
  return ranks
    .map((rank, row) => ({ rank, deviation: recent[row] ?? Number.NaN }))
    .filter(({ deviation }) => Math.abs(deviation) >= Math.max(0.03, 4 * spread))
    .sort((a, b) => Math.abs(b.deviation) - Math.abs(a.deviation))
    .slice(0, most);
}

/** Return the cell of a block with the largest deviation, which a shared pixel shows. */
export function worstIn(
  found: Deviations,
  [fromRow, toRow]: readonly [number, number],
  [fromColumn, toColumn]: readonly [number, number],
): { row: number; column: number; value: number } | null {
  let worst: { row: number; column: number; value: number } | null = null;
  for (let row = fromRow; row < toRow; row += 1) {
    for (let column = fromColumn; column < toColumn; column += 1) {
      const value = found.values[row * found.columns + column] as number;
      if (!Number.isNaN(value) && (worst === null || Math.abs(value) > Math.abs(worst.value)))
        worst = { row, column, value };
    }
  }
  return worst;
}
