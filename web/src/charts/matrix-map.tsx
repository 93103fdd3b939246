/** A matrix as one picture, read with the mouse or the arrow keys. */
import { type KeyboardEvent, type MouseEvent, useEffect, useMemo, useRef } from "react";
import { cx } from "@/lib/cx";
import { useWidth } from "@/lib/use-size";
import { labeledIndices, layoutMatrix, type MatrixLayout, moved, type Place, placeAt } from "./matrix-layout";
import { paintMatrix } from "./matrix-paint";

export interface Axis {
  title: string;
  /** Label of a row or column; called where a label has room. */
  label: (index: number) => string;
  /** Marked indices, each with its text. */
  flags?: ReadonlyMap<number, string>;
}

interface Props {
  label: string;
  rows: number;
  columns: number;
  color: (row: number, column: number) => number;
  rowAxis: Axis;
  columnAxis: Axis;
  cursor: Place | null;
  onCursor: (place: Place | null) => void;
  onOpen?: (place: Place) => void;
  describe: (place: Place) => string;
  /** The width, if known; else the matrix measures its own. */
  width?: number;
  square?: boolean;
  maxHeight?: number;
  /** Pixels for the rows' labels. */
  gutter?: number;
  /** Starts of groups: a line is drawn before these rows and columns. */
  rowBreaks?: readonly number[];
  columnBreaks?: readonly number[];
  /** Missing cells are missing data (drawn with a texture), not empty. */
  missing?: boolean;
}

const HEAD = 20;
/** Room for the title of the columns. */
const TITLE = 60;

export function MatrixMap(props: Props) {
  const { rows, columns, color, cursor, onCursor, onOpen, describe, square = false, maxHeight = 460 } = props;
  const { missing = false } = props;
  const gutter = props.gutter ?? 44;
  const [frame, own] = useWidth<HTMLDivElement>();
  const full = props.width ?? own;
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = Math.max(1, full - gutter - 16);
  const layout = useMemo(
    () => layoutMatrix(rows, columns, { width, maxHeight, square }),
    [rows, columns, width, maxHeight, square],
  );

  useEffect(() => {
    const element = canvas.current;
    const context = element?.getContext("2d");
    if (!element || !context || full === 0) return;
    const scale = window.devicePixelRatio || 1;
    element.width = Math.max(1, Math.round(layout.width * scale));
    element.height = Math.max(1, Math.round(layout.height * scale));
    const image = context.createImageData(element.width, element.height);
    paintMatrix(new Uint32Array(image.data.buffer), element.width, scale, layout, color, !missing);
    context.putImageData(image, 0, 0);
  }, [layout, color, full, missing]);

  function at(event: MouseEvent): Place | null {
    const box = event.currentTarget.getBoundingClientRect();
    return placeAt(layout, event.clientX - box.left, event.clientY - box.top);
  }

  function onKey(event: KeyboardEvent) {
    if (event.metaKey || event.ctrlKey || event.altKey) return;
    const next = moved(layout, cursor, event.key);
    if (next) onCursor(next);
    else if (event.key === "Enter" && cursor) onOpen?.(cursor);
    else if (event.key === "Escape") onCursor(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  return (
    <div ref={frame} className="min-w-0">
      <div
        className="relative"
        style={{ height: layout.height + HEAD * 2, paddingLeft: gutter, paddingTop: HEAD }}
      >
        {full > 0 && <Labels axis={props.rowAxis} layout={layout} gutter={gutter} full={full} side="row" />}
        {full > 0 && (
          <Labels axis={props.columnAxis} layout={layout} gutter={gutter} full={full} side="column" />
        )}
        <div
          role="application"
          aria-label={`${props.label}. Arrow keys move the cursor, Escape clears it.`}
          // biome-ignore lint/a11y/noNoninteractiveTabindex: arrow keys operate the matrix
          tabIndex={0}
          onKeyDown={onKey}
          onMouseMove={(event) => onCursor(at(event))}
          onMouseLeave={() => onCursor(null)}
          onClick={(event) => {
            const place = at(event);
            if (place) onOpen?.(place);
          }}
          className={cx("relative cursor-crosshair rounded-[2px]", missing ? "diagonal" : "bg-sunken")}
          style={{ width: layout.width, height: layout.height }}
        >
          <canvas ref={canvas} className="block" style={{ width: layout.width, height: layout.height }} />
          <Breaks layout={layout} rows={props.rowBreaks} columns={props.columnBreaks} />
          {cursor && <Cross layout={layout} place={cursor} />}
        </div>
      </div>
      <p aria-live="polite" className="sr-only">
        {cursor ? describe(cursor) : ""}
      </p>
    </div>
  );
}

/** Lines between groups, where they are not too close. */
function Breaks({ layout, rows = [], columns = [] }: BreaksProps) {
  const line = "pointer-events-none absolute bg-ink/20";
  return (
    <>
      {rows.map((row) => (
        <div
          key={`r${row}`}
          className={line}
          style={{ left: 0, top: row * layout.cellHeight - 1, width: layout.width, height: 1 }}
        />
      ))}
      {columns.map((column) => (
        <div
          key={`c${column}`}
          className={line}
          style={{ left: column * layout.cellWidth - 1, top: 0, width: 1, height: layout.height }}
        />
      ))}
    </>
  );
}

interface BreaksProps {
  layout: MatrixLayout;
  rows: readonly number[] | undefined;
  columns: readonly number[] | undefined;
}

/** The cursor's row and column, and the cell where they meet. */
function Cross({ layout, place }: { layout: MatrixLayout; place: Place }) {
  const { cellWidth: w, cellHeight: h } = layout;
  const band = "pointer-events-none absolute outline outline-ink/55";
  return (
    <>
      <div className={band} style={{ left: 0, top: place.row * h, width: layout.width, height: h }} />
      <div className={band} style={{ left: place.column * w, top: 0, width: w, height: layout.height }} />
      <div
        className="pointer-events-none absolute rounded-[1px] outline-2 outline-ink"
        style={{ left: place.column * w, top: place.row * h, width: w, height: h }}
      />
    </>
  );
}

interface LabelsProps {
  axis: Axis;
  layout: MatrixLayout;
  gutter: number;
  full: number;
  side: "row" | "column";
}

function Labels({ axis, layout, gutter, full, side }: LabelsProps) {
  const row = side === "row";
  const [count, pitch] = row ? [layout.rows, layout.cellHeight] : [layout.columns, layout.cellWidth];
  const widest = Math.max(axis.label(0)?.length ?? 0, axis.label(Math.max(0, count - 1))?.length ?? 0);
  const shown = labeledIndices(count, pitch, row ? 15 : 14 + widest * 7);
  // The axis title is beside a small picture, and in the place of the last label of one that fills the width.
  const beside = gutter + layout.width + TITLE < full;
  const middle = (index: number) => (index + 0.5) * pitch;
  return (
    <div aria-hidden="true" className="pointer-events-none">
      <span
        className="absolute whitespace-nowrap text-2xs text-ink-3"
        style={
          row
            ? { left: 0, top: 0 }
            : {
                top: HEAD + layout.height + 3,
                ...(beside ? { left: gutter + layout.width + 8 } : { right: 0 }),
              }
        }
      >
        {axis.title}
      </span>
      {shown.map((index) =>
        row ? (
          <span
            key={index}
            className="num absolute truncate pr-2 text-right text-2xs text-ink-3 leading-4"
            style={{ left: 0, width: gutter, top: HEAD + middle(index) - 8 }}
          >
            {axis.label(index)}
          </span>
        ) : (
          (beside || index * pitch < layout.width - TITLE) && (
            <span
              key={index}
              className="num absolute -translate-x-1/2 whitespace-nowrap text-2xs text-ink-3"
              style={{ left: gutter + middle(index), top: HEAD + layout.height + 3 }}
            >
              {axis.label(index)}
            </span>
          )
        ),
      )}
      {row &&
        [...(axis.flags ?? [])].map(([index, text]) => (
          <span
            key={`flag${index}`}
            title={text}
            className="absolute text-quarantined text-xs leading-4"
            style={{ left: gutter + layout.width + 3, top: HEAD + middle(index) - 8 }}
          >
            ◀
          </span>
        ))}
    </div>
  );
}
