/** The job as its topology: every rank is a cell, its number a color, its state a glyph. */
import type { KeyboardEvent } from "react";
import type { TopologyRank } from "@/api/types";
import { useDark } from "@/app/theme";
import { cx } from "@/lib/cx";
import { rank as rankLooks, statusStyleOf } from "@/lib/status-styles";
import { Glyph } from "@/ui/glyph";
import { css, inkOn, scaleColor } from "./color";
import { rankGrid } from "./rank-layout";

interface Props {
  ranks: TopologyRank[];
  size: { dp: number; pp: number; tp: number };
  values: Map<number, number | null>;
  range: [number, number] | null;
  format: (value: number) => string;
  selected: number | null;
  onSelect: (rank: number | null) => void;
}

export function RankGrid({ ranks, size, values, range, format, selected, onSelect }: Props) {
  const dark = useDark();
  const grid = rankGrid(ranks, size);
  const roomy = grid.columns <= 12;
  const track = !roomy
    ? "minmax(1.6rem, 3rem)"
    : grid.columns > 4
      ? "minmax(4rem, 8rem)"
      : "minmax(5.5rem, 11rem)";

  function onKey(event: KeyboardEvent<HTMLButtonElement>, index: number) {
    const moves: Record<string, number> = {
      ArrowLeft: -1,
      ArrowRight: 1,
      ArrowUp: -grid.columns,
      ArrowDown: grid.columns,
      h: -1,
      l: 1,
      k: -grid.columns,
      j: grid.columns,
    };
    const move = moves[event.key];
    if (move === undefined || event.metaKey || event.ctrlKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    const cells = event.currentTarget
      .closest("[data-grid]")
      ?.querySelectorAll<HTMLButtonElement>("[data-cell]");
    for (const cell of cells ?? []) if (Number(cell.dataset.cell) === index + move) cell.focus();
  }

  return (
    <div className="-m-1 overflow-x-auto p-1">
      <div
        data-grid
        className="grid gap-[3px]"
        style={{
          gridTemplateColumns: `max-content repeat(${grid.columns}, ${track})`,
        }}
      >
        <span className="self-end pr-2 text-2xs text-ink-3">dp \ pp</span>
        {Array.from({ length: size.pp }, (_, stage) => (
          <span
            // biome-ignore lint/suspicious/noArrayIndexKey: a stage is its index
            key={stage}
            className="num pb-0.5 text-center text-ink-3 text-xs"
            style={{ gridColumn: `span ${grid.stageWidth}` }}
          >
            {stage}
          </span>
        ))}
        {grid.cells.map((rank, index) => {
          const row = Math.floor(index / grid.columns);
          const head = index % grid.columns === 0 && (
            <span key={`row${row}`} className="num self-center pr-2 text-right text-ink-3 text-xs">
              {row}
            </span>
          );
          const cell = rank ? (
            <Cell
              key={rank.rank}
              rank={rank}
              value={values.get(rank.rank) ?? null}
              share={share(values.get(rank.rank) ?? null, range)}
              dark={dark}
              roomy={roomy}
              format={format}
              selected={selected === rank.rank}
              onSelect={() => onSelect(selected === rank.rank ? null : rank.rank)}
              onKey={(event) => onKey(event, index)}
              index={index}
            />
          ) : (
            // biome-ignore lint/suspicious/noArrayIndexKey: a hole is its place
            <span key={`hole${index}`} className="diagonal rounded opacity-40" />
          );
          return [head, cell];
        })}
      </div>
    </div>
  );
}

function share(value: number | null, range: [number, number] | null): number | null {
  return value === null || !range ? null : (value - range[0]) / (range[1] - range[0]);
}

interface CellProps {
  rank: TopologyRank;
  value: number | null;
  share: number | null;
  dark: boolean;
  roomy: boolean;
  format: (value: number) => string;
  selected: boolean;
  onSelect: () => void;
  onKey: (event: KeyboardEvent<HTMLButtonElement>) => void;
  index: number;
}

function Cell({ rank, value, share: at, dark, roomy, format, selected, onSelect, onKey, index }: CellProps) {
  const look = statusStyleOf(rankLooks, rank.state);
  const well = rank.state === "running" && at !== null;
  const ground = well ? scaleColor(at, dark) : null;
  const shown = value === null ? "no data" : format(value);
  const face = rank.state === "running" ? shown : look.label;
  return (
    <button
      type="button"
      data-cell={index}
      aria-pressed={selected}
      title={`rank ${rank.rank} on ${rank.node}: ${look.label.toLowerCase()}, ${shown}`}
      onClick={onSelect}
      onKeyDown={onKey}
      className={cx(
        "relative flex flex-col items-start justify-between overflow-hidden rounded text-left",
        roomy ? "h-13 px-2 py-1" : "h-7 items-center justify-center",
        !ground && "border border-line-strong bg-sunken text-ink",
        selected && "outline-2 outline-ink outline-offset-1",
      )}
      style={ground ? { background: css(ground), color: inkOn(ground) } : undefined}
    >
      {!ground && <span className="diagonal absolute inset-0 opacity-35" aria-hidden="true" />}
      {roomy && (
        <span className="relative flex w-full items-center justify-between gap-1 text-2xs">
          <span className="num whitespace-nowrap">rank {rank.rank}</span>
          {rank.state !== "running" && <Glyph name={look.glyph} size={11} />}
        </span>
      )}
      {!roomy && rank.state !== "running" && <Glyph name={look.glyph} size={10} />}
      {roomy && (
        <span
          className={cx(
            "num relative max-w-full truncate font-medium",
            rank.state === "running" ? "text-sm" : "text-xs",
          )}
        >
          {face}
        </span>
      )}
      <span className="sr-only">
        {roomy ? "" : ` rank ${rank.rank}: ${face}`}, replica {rank.dp}, stage {rank.pp}, on {rank.node}
      </span>
    </button>
  );
}

/** The same picture in a small size, for lists. */
export function RankMini({ ranks, size }: Pick<Props, "ranks" | "size">) {
  const grid = rankGrid(ranks, size);
  const columns = Math.min(grid.columns, 32);
  if (grid.cells.length > 256) return <span className="num text-ink-3 text-xs">{ranks.length} ranks</span>;
  const lost = ranks.filter((rank) => rank.state !== "running").length;
  return (
    <span
      role="img"
      aria-label={`${ranks.length} ranks, ${lost === 0 ? "all running" : `${lost} not running`}`}
      className="inline-grid gap-px"
      style={{ gridTemplateColumns: `repeat(${columns}, 9px)` }}
    >
      {grid.cells.map((rank, index) => (
        <span
          // biome-ignore lint/suspicious/noArrayIndexKey: a cell is its place
          key={index}
          className={cx(
            "size-[9px] rounded-[2px]",
            !rank && "diagonal",
            rank?.state === "running" && "bg-healthy",
            rank?.state === "lost" && "border-[2.5px] border-quarantined",
            rank?.state === "restoring" && "border-[2.5px] border-suspect",
          )}
        />
      ))}
    </span>
  );
}
