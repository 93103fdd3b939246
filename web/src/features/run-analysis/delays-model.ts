/** The transfers between ranks as a matrix, by rank or by node. */
import { type Bin, evenBins, runs } from "@/charts/matrix-layout";
import { median } from "@/charts/rank-layout";
import type { JobPairs } from "./types";

export interface Pair {
  source: number;
  destination: number;
  seconds: number;
  bytes: number | null;
  /** Divided by the median of pairs that transfer about as much (within a factor of two); usually 1. */
  alike: number;
}

/** Indices of a matrix's rows, with the ranks of a node adjacent. */
export interface Order {
  /** Indices into `pairs.ranks`. */
  index: number[];
  nodes: string[];
}

export function byNode(ranks: readonly number[], nodeOf: ReadonlyMap<number, string>): Order {
  const nodes = ranks.map((rank) => nodeOf.get(rank) ?? "?");
  const first = new Map<string, number>();
  nodes.forEach((node, at) => {
    if (!first.has(node)) first.set(node, at);
  });
  const index = ranks.map((_, at) => at);
  index.sort((a, b) => {
    const [x, y] = [first.get(nodes[a] as string) as number, first.get(nodes[b] as string) as number];
    return x - y || (ranks[a] as number) - (ranks[b] as number);
  });
  return { index, nodes: index.map((at) => nodes[at] as string) };
}

/** Return every pair with transfers, compared with pairs that transfer as much. */
export function pairsOf(pairs: JobPairs): Pair[] {
  const found: Omit<Pair, "alike">[] = [];
  pairs.seconds.forEach((row, i) => {
    row.forEach((seconds, j) => {
      const [source, destination] = [pairs.ranks[i], pairs.ranks[j]];
      if (seconds === null || source === undefined || destination === undefined) return;
      found.push({ source, destination, seconds, bytes: pairs.bytes[i]?.[j] ?? null });
    });
  });
  const size = (bytes: number | null) => (bytes === null || bytes <= 0 ? -1 : Math.round(Math.log2(bytes)));
  const classes = new Map<number, number[]>();
  for (const pair of found) {
    const members = classes.get(size(pair.bytes));
    if (members) members.push(pair.seconds);
    else classes.set(size(pair.bytes), [pair.seconds]);
  }
  const usual = new Map([...classes].map(([key, seconds]) => [key, median(seconds) ?? Number.NaN]));
  return found.map((pair) => ({ ...pair, alike: pair.seconds / (usual.get(size(pair.bytes)) as number) }));
}

export interface DelayCell {
  /** The slowest pair of the block, by seconds or relative to comparable pairs. */
  worst: Pair;
  pairs: number;
}

export interface DelayMatrix {
  bins: Bin[];
  /** Row-major [source bin × destination bin]; null without transfers. */
  cells: (DelayCell | null)[];
}

export type Measure = "seconds" | "alike";

/** Return the pairs in a matrix of blocks; a block shows its slowest pair, so that one slow link stays visible. */
export function delayMatrix(
  pairs: readonly Pair[],
  ranks: readonly number[],
  order: Order,
  bins: Bin[],
  by: Measure,
): DelayMatrix {
  const blockOf = new Map<number, number>();
  bins.forEach(([from, to], block) => {
    for (let at = from; at < to; at += 1) blockOf.set(ranks[order.index[at] as number] as number, block);
  });
  const cells: (DelayCell | null)[] = Array.from({ length: bins.length ** 2 }, () => null);
  for (const pair of pairs) {
    const row = blockOf.get(pair.source);
    const column = blockOf.get(pair.destination);
    if (row === undefined || column === undefined) continue;
    const at = row * bins.length + column;
    const cell = cells[at];
    if (!cell) cells[at] = { worst: pair, pairs: 1 };
    else {
      cell.pairs += 1;
      if (pair[by] > cell.worst[by]) cell.worst = pair;
    }
  }
  return { bins, cells };
}

/** The most ranks with a row each; with more ranks, a row is a node. */
export const MOST_BY_RANK = 160;
const MOST_BLOCKS = 256;

export function blocks(order: Order, grain: "rank" | "node"): Bin[] {
  const single = order.index.map((_, at): Bin => [at, at + 1]);
  if (grain === "rank") return single;
  const nodes = runs(order.nodes);
  return evenBins(nodes.length, MOST_BLOCKS).map(
    ([from, to]): Bin => [(nodes[from] as Bin)[0], (nodes[to - 1] as Bin)[1]],
  );
}

/** Return ratios from 0 to 1 on a logarithmic scale that spans at least 25%, so that noise does not look like a fault. */
export function secondsScale(pairs: readonly Pair[]): { low: number; high: number } | null {
  const known = pairs.map((pair) => pair.seconds).filter((v) => v > 0);
  if (known.length === 0) return null;
  const low = known.reduce((a, b) => Math.min(a, b));
  return {
    low,
    high: Math.max(
      known.reduce((a, b) => Math.max(a, b)),
      low * 1.25,
    ),
  };
}

export const shareOf = (seconds: number, { low, high }: { low: number; high: number }) =>
  seconds <= low ? 0 : Math.log(seconds / low) / Math.log(high / low);

/** Return the slowest pairs relative to comparable pairs, for the table beside the picture. */
export function slowest(pairs: readonly Pair[], most = 6): Pair[] {
  return [...pairs].sort((a, b) => b.alike - a.alike || b.seconds - a.seconds).slice(0, most);
}

export interface Endpoint {
  rank: number;
  as: "sender" | "receiver";
  slow: number;
  of: number;
}

/** The threshold of slow transfers for the text under the matrix; detectors have their own. */
const SLOW = 1.5;

/** Return senders and receivers of which all transfers are slow. */
export function slowEnds(pairs: readonly Pair[]): Endpoint[] {
  const ends = new Map<string, Endpoint>();
  for (const pair of pairs) {
    for (const [rank, as] of [
      [pair.source, "sender"],
      [pair.destination, "receiver"],
    ] as const) {
      const key = `${as}${rank}`;
      const end = ends.get(key) ?? { rank, as, slow: 0, of: 0 };
      end.of += 1;
      if (pair.alike >= SLOW) end.slow += 1;
      ends.set(key, end);
    }
  }
  return [...ends.values()]
    .filter((end) => end.of > 1 && end.slow === end.of)
    .sort((a, b) => b.of - a.of || a.rank - b.rank);
}
