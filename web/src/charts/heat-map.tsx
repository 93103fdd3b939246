/** The fleet as one picture: a canvas of cells, read with the mouse or the arrow keys. */
import { type KeyboardEvent, type MouseEvent, useCallback, useEffect, useMemo, useRef } from "react";
import { useWidth } from "@/lib/use-size";
import { type Direction, hit, neighbor, nodeOf, nodesInBox } from "./heat-find";
import { cellAt, type HeatLayout, type HeatNode, type HeatRack, layoutHeat } from "./heat-layout";
import { type Marks, paintMarks } from "./heat-marks";
import { type Ink, paintHeat } from "./heat-paint";
import { RackLabels } from "./rack-labels";
import { useBoxSelect } from "./use-box-select";

export type SelectMode = "replace" | "add" | "toggle";

export interface MapSelection {
  /** Names of nodes. */
  selected: ReadonlySet<string>;
  onSelect: (names: string[], mode: SelectMode) => void;
  /** The color of the frame of a selected node, as pixels read it. */
  color: number;
}

interface Props {
  nodes: HeatNode[];
  /** Byte index of each cell in drawing order. */
  slots: ArrayLike<number>;
  values: Uint8Array;
  inks: (value: number) => Ink;
  /** Drawn over their cells. */
  marks?: Marks;
  label: string;
  /** The value of a cell as text; shown beside a node that has one cell. */
  read: (index: number) => string;
  /** The text for the cell under the cursor. */
  describe: (index: number) => string;
  cursor: number | null;
  onCursor: (index: number | null) => void;
  onOpen: (index: number) => void;
  selection?: MapSelection;
  /** What the nodes of one box share, and the name of the box of those that share none. */
  groups: string;
  noGroup: string;
  maxHeight: number;
}

const arrows: Record<string, Direction> = {
  ArrowLeft: "left",
  ArrowRight: "right",
  ArrowUp: "up",
  ArrowDown: "down",
  h: "left",
  l: "right",
  k: "up",
  j: "down",
};

export function HeatMap(props: Props) {
  const {
    nodes,
    slots,
    values,
    inks,
    marks,
    label,
    read,
    describe,
    cursor,
    onCursor,
    onOpen,
    selection,
    groups,
    noGroup,
    maxHeight,
  } = props;
  const [frame, width] = useWidth<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const layout = useMemo(() => layoutHeat(nodes, Math.max(width, 1), maxHeight), [nodes, width, maxHeight]);

  const selected = selection?.selected;
  const frameColor = selection?.color ?? 0;

  useEffect(() => {
    const element = canvas.current;
    const context = element?.getContext("2d");
    if (!element || !context || width === 0) return;
    const scale = window.devicePixelRatio || 1;
    element.width = Math.max(1, Math.round(layout.width * scale));
    element.height = Math.max(1, Math.round(layout.height * scale));
    const image = context.createImageData(element.width, element.height);
    const frames = selected?.size
      ? { has: (at: number) => selected.has(layout.nodes[at]?.name ?? ""), color: frameColor }
      : undefined;
    const pixels = new Uint32Array(image.data.buffer);
    paintHeat(pixels, element.width, scale, layout, slots, values, inks, frames);
    if (marks) paintMarks(pixels, element.width, scale, layout, marks);
    context.putImageData(image, 0, 0);
  }, [layout, slots, values, inks, marks, width, selected, frameColor]);

  const namesOf = (indexes: number[]) => indexes.flatMap((index) => layout.nodes[index]?.name ?? []);
  const onSelect = selection?.onSelect;
  const toggleRack = useCallback(
    ({ first, count }: HeatRack) =>
      onSelect?.(
        layout.nodes.slice(first, first + count).map((node) => node.name),
        "toggle",
      ),
    [layout, onSelect],
  );
  const drag = useBoxSelect((box, extend) =>
    onSelect?.(namesOf(nodesInBox(layout, box)), extend ? "add" : "replace"),
  );

  function at(event: MouseEvent): number | null {
    const box = event.currentTarget.getBoundingClientRect();
    return hit(layout, event.clientX - box.left, event.clientY - box.top);
  }

  function onKey(event: KeyboardEvent) {
    if (event.metaKey || event.ctrlKey || event.altKey) return;
    const direction = arrows[event.key];
    if (direction) onCursor(cursor === null ? 0 : neighbor(layout, cursor, direction));
    else if (event.key === "Enter" && cursor !== null) onOpen(cursor);
    else if (event.key === " " && cursor !== null) onSelect?.(namesOf([nodeIndex]), "toggle");
    else if (event.key === "r" && rack) toggleRack(rack);
    else if (event.key === "Escape") onCursor(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  const nodeIndex = cursor === null ? 0 : nodeOf(layout, cursor);
  const rack = cursor === null ? null : layout.racks.findLast((one) => one.first <= nodeIndex);
  const mark =
    cursor === null ? null : cellAt(layout, nodeIndex, cursor - (layout.nodes[nodeIndex]?.first ?? 0));

  return (
    <div ref={frame} className="relative min-w-0">
      <div
        role="application"
        aria-label={`${label}. Arrow keys move between devices, Enter opens the node.${
          selection ? ` Space selects the node, R its ${groups}.` : ""
        }`}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: arrow keys operate the map
        tabIndex={0}
        onKeyDown={onKey}
        onMouseMove={(event) => onCursor(at(event))}
        onMouseLeave={() => onCursor(null)}
        onClick={(event) => {
          const index = at(event);
          if (index === null) return;
          const many = selection && (event.shiftKey || event.ctrlKey || event.metaKey);
          if (many) selection.onSelect(namesOf([nodeOf(layout, index)]), "toggle");
          else onOpen(index);
        }}
        {...(selection && drag.handlers)}
        className="relative cursor-crosshair select-none rounded"
        style={{ height: layout.height }}
      >
        <canvas ref={canvas} className="block" style={{ width: layout.width, height: layout.height }} />
        {layout.label > 0 && width > 0 && <Labels layout={layout} read={read} />}
        {drag.box && (
          <div
            className="pointer-events-none absolute border border-accent bg-accent/15"
            style={{
              left: drag.box.left,
              top: drag.box.top,
              width: drag.box.right - drag.box.left,
              height: drag.box.bottom - drag.box.top,
            }}
          />
        )}
        {mark && (
          <div
            className="pointer-events-none absolute rounded-[2px] outline-2 outline-ink outline-offset-1"
            style={{ left: mark.x, top: mark.y, width: layout.cell, height: layout.cell }}
          />
        )}
      </div>
      {layout.band > 0 && width > 0 && (
        <RackLabels racks={layout.racks} none={noGroup} onToggle={onSelect && toggleRack} />
      )}
      <p aria-live="polite" className="sr-only">
        {cursor === null ? "" : describe(cursor)}
      </p>
    </div>
  );
}

function Labels({ layout, read }: { layout: HeatLayout; read: (index: number) => string }) {
  return layout.nodes.map((node, index) => {
    const { x, y } = cellAt(layout, index, 0);
    return (
      <div
        key={node.name}
        aria-hidden="true"
        className="pointer-events-none absolute text-2xs text-ink-2"
        style={{ left: x, top: y - 19, width: layout.stepX - 10 }}
      >
        <span className="block truncate font-mono">{node.name}</span>
        {node.count === 1 && (
          <span
            className="num absolute text-ink text-xs"
            style={{ left: layout.cell + 8, top: 19 + layout.cell / 2 - 8 }}
          >
            {read(node.first)}
          </span>
        )}
      </div>
    );
  });
}
