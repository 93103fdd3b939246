import { useMemo, useState } from "react";
import { useDark } from "@/app/theme";
import { divergingColor, divergingGradient, pack, scaleColor, scaleGradient } from "@/charts/color";
import { type Bin, breaks, type Place } from "@/charts/matrix-layout";
import { MatrixMap } from "@/charts/matrix-map";
import { CLEAR } from "@/charts/matrix-paint";
import { bytes, duration, integer, plural } from "@/lib/format";
import {
  blocks,
  type DelayMatrix,
  delayMatrix,
  type Measure,
  type Order,
  type Pair,
  secondsScale,
  shareOf,
} from "./delays-model";
import { rate } from "./slow-pairs";

interface Props {
  pairs: Pair[];
  ranks: number[];
  order: Order;
  by: Measure;
  grain: "rank" | "node";
}

/** The ends of the scale: twice and half the time of comparable transfers. */
const FULL_RATIO = 2;
const MAX_HEIGHT = 520;
/** A node's name beside its rows. */
const GUTTER_NODE = 92;
const GUTTER_RANK = 40;

export function DelayMatrixView({ pairs, ranks, order, by, grain }: Props) {
  const dark = useDark();
  const [cursor, setCursor] = useState<Place | null>(null);
  const bins = useMemo(() => blocks(order, grain), [order, grain]);
  const matrix = useMemo(() => delayMatrix(pairs, ranks, order, bins, by), [pairs, ranks, order, bins, by]);
  const scale = useMemo(() => secondsScale(pairs), [pairs]);
  const n = bins.length;
  const color = useMemo(
    () => (row: number, column: number) => {
      const cell = matrix.cells[row * n + column];
      if (!cell || !scale) return CLEAR;
      if (by === "seconds") return pack(scaleColor(shareOf(cell.worst.seconds, scale), dark));
      return pack(divergingColor(Math.log(cell.worst.alike) / Math.log(FULL_RATIO), dark));
    },
    [matrix, n, scale, by, dark],
  );
  const parted = useMemo(() => breaks(order.nodes, bins, MAX_HEIGHT / n), [order, bins, n]);
  const name = (index: number) => blockName(bins[index], ranks, order, grain);
  const at = cursor && cursor.row < n && cursor.column < n ? cursor : null;
  const describe = (place: Place) => cellText(matrix, place, name);
  return (
    <div className="min-w-0">
      <p className="num min-h-10 text-ink-2 text-xs leading-5 sm:min-h-5">
        {at ? (
          describe(at)
        ) : (
          <span className="text-ink-3">
            Rows send and columns receive. A row that stands out is a slow sender, a column a slow receiver,
            and a single cell a slow link.
          </span>
        )}
      </p>
      <MatrixMap
        label={`Transfers between ${integer(n)} ${grain}s, senders in rows, receivers in columns`}
        rows={n}
        columns={n}
        color={color}
        cursor={at}
        onCursor={setCursor}
        describe={describe}
        rowAxis={{ title: "sender", label: (row) => shortName(bins[row], ranks, order, grain) }}
        columnAxis={{ title: "receiver", label: (column) => shortName(bins[column], ranks, order, grain) }}
        square
        rowBreaks={parted}
        columnBreaks={parted}
        maxHeight={MAX_HEIGHT}
        gutter={grain === "node" ? GUTTER_NODE : GUTTER_RANK}
      />
      <div className="num mt-1 flex flex-wrap items-center gap-x-4 gap-y-1 text-ink-3 text-xs">
        {by === "alike" ? (
          <Gradient low="half the time" high="twice the time or more" ground={divergingGradient(dark)} />
        ) : (
          scale && (
            <Gradient low={duration(scale.low)} high={duration(scale.high)} ground={scaleGradient(dark)} />
          )
        )}
        <span className="flex items-center gap-1.5">
          <span aria-hidden="true" className="size-3 rounded-[2px] border border-line bg-sunken" /> no
          transfers
        </span>
        {grain === "node" && <span>each cell shows its slowest pair</span>}
      </div>
    </div>
  );
}

function Gradient({ low, high, ground }: { low: string; high: string; ground: string }) {
  return (
    <span className="flex items-center gap-2">
      <span>{low}</span>
      <span
        aria-hidden="true"
        className="h-2 w-36 rounded-[3px] border border-line"
        style={{ background: ground }}
      />
      <span>{high}</span>
    </span>
  );
}

function shortName(bin: Bin | undefined, ranks: number[], order: Order, grain: "rank" | "node"): string {
  if (!bin) return "";
  return grain === "node" ? (order.nodes[bin[0]] ?? "") : String(ranks[order.index[bin[0]] as number] ?? "");
}

function blockName(bin: Bin | undefined, ranks: number[], order: Order, grain: "rank" | "node"): string {
  if (!bin) return "";
  const node = order.nodes[bin[0]] ?? "?";
  const last = order.nodes[bin[1] - 1];
  if (grain === "rank") return `rank ${ranks[order.index[bin[0]] as number]} on ${node}`;
  return last === node ? node : `${node} … ${last}`;
}

function cellText(matrix: DelayMatrix, { row, column }: Place, name: (index: number) => string): string {
  const cell = matrix.cells[row * matrix.bins.length + column];
  const head = `${name(row)} → ${name(column)}`;
  if (!cell) return `${head}: no transfers`;
  const { worst, pairs } = cell;
  const many =
    pairs > 1
      ? `, slowest of ${plural(pairs, "pair")}: rank ${worst.source} → rank ${worst.destination}`
      : "";
  return `${head}: ${duration(worst.seconds)} for ${bytes(worst.bytes)} (${rate(worst)}), ${worst.alike.toFixed(2)} × comparable transfers${many}`;
}
