/** Ranks on a grid: a row per data-parallel replica, a column per pipeline stage (and within it per tensor shard). */
import type { TopologyRank } from "@/api/types";

export interface RankGrid<T> {
  rows: number;
  columns: number;
  /** Row-major; null where a topology has a hole. */
  cells: (T | null)[];
  /** Columns of one stage are adjacent. */
  stageWidth: number;
}

type Place = Pick<TopologyRank, "dp" | "pp" | "tp">;

export function rankGrid<T extends Place>(
  ranks: readonly T[],
  size: { dp: number; pp: number; tp: number },
): RankGrid<T> {
  const stageWidth = Math.max(1, size.tp);
  const columns = Math.max(1, size.pp) * stageWidth;
  const rows = Math.max(1, size.dp);
  const cells: (T | null)[] = Array.from({ length: rows * columns }, () => null);
  for (const rank of ranks) {
    const column = rank.pp * stageWidth + rank.tp;
    if (rank.dp < rows && column < columns) cells[rank.dp * columns + column] = rank;
  }
  return { rows, columns, cells, stageWidth };
}

export function median(values: readonly number[]): number | null {
  if (values.length === 0) return null;
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2
    ? (sorted[middle] as number)
    : ((sorted[middle - 1] as number) + (sorted[middle] as number)) / 2;
}

/** The newest value of each rank: the last one that is not missing, and how many steps ago that was. */
export function newest(
  series: readonly (number | null)[] | undefined,
): { value: number; stepsAgo: number } | null {
  if (!series) return null;
  for (let i = series.length - 1; i >= 0; i -= 1) {
    const value = series[i];
    if (value != null) return { value, stepsAgo: series.length - 1 - i };
  }
  return null;
}

/**
 * Return each value over the median of its peers (the ranks of the same stage). Stages differ: the last one also
 * computes the loss and may be slower than the first. A rank without peers has no ratio.
 */
export function ratioToPeers(
  values: readonly (number | null)[],
  stages: readonly number[],
): (number | null)[] {
  return values.map((value, i) => {
    if (value === null) return null;
    const peers = values.filter((v, k): v is number => k !== i && v !== null && stages[k] === stages[i]);
    const reference = median(peers);
    return reference === null || reference <= 0 ? null : value / reference;
  });
}

/**
 * Return the range of the color scale. It spans at least a quarter of the median, so that noise does not look like a
 * fault.
 */
export function colorRange(values: readonly (number | null)[]): [number, number] | null {
  const known = values.filter((v): v is number => v !== null);
  const middle = median(known);
  if (middle === null) return null;
  const low = Math.min(...known);
  return [low, Math.max(Math.max(...known), low + Math.abs(middle) * 0.25, low + 1e-9)];
}
