/** A line chart over time or steps. The value under the crosshair is shown beside the title. */
import { type ReactNode, useEffect, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useDark } from "@/app/theme";
import { cx } from "@/lib/cx";
import { quantity } from "@/lib/format";
import { serverNow, when } from "@/lib/time";
import { useWidth } from "@/lib/use-size";
import { heldAt } from "./bridge";
import { type ChartSpec, chartData, chartOptions, type Line } from "./chart-options";
import { lineStyle } from "./color";

interface Props extends ChartSpec {
  title: string;
  about?: ReactNode;
  onZoom?: (from: number, to: number) => void;
  /** False where charts share one. */
  legend?: boolean;
}

/** The properties that need a new chart; all others are new data for the same chart. */
function shapeOf(spec: ChartSpec, dark: boolean): string {
  const lines = spec.lines.map(
    (l) => `${l.label}${l.low ? "~" : ""}${l.context ? "c" : ""}${l.focus ? "f" : ""}`,
  );
  return [dark, spec.unit, spec.rate, spec.xIs, spec.height, spec.syncKey, spec.threshold, ...lines].join(
    "|",
  );
}

export function TimeChart(props: Props) {
  const { title, about, onZoom, legend = true, ...spec } = props;
  const [frame, width] = useWidth<HTMLDivElement>();
  const plot = useRef<uPlot | null>(null);
  const readout = useRef<HTMLSpanElement>(null);
  const latest = useRef({ spec, onZoom });
  latest.current = { spec, onZoom };
  const dark = useDark();
  const shape = shapeOf(spec, dark);

  // biome-ignore lint/correctness/useExhaustiveDependencies: `shape` covers all that needs a new chart
  useEffect(() => {
    const host = frame.current;
    if (!host || width === 0) return;
    const current = latest.current.spec;
    const chart = new uPlot(
      chartOptions(liveSpec(current, latest), width, dark, {
        onCursor: (index) => read(readout.current, latest.current.spec, index),
        onZoom: onZoom ? (from, to) => latest.current.onZoom?.(from, to) : undefined,
      }),
      chartData(current),
      host,
    );
    plot.current = chart;
    return () => {
      chart.destroy();
      plot.current = null;
    };
  }, [shape, width === 0]);

  useEffect(() => {
    if (width > 0) plot.current?.setSize({ width, height: spec.height });
  }, [width, spec.height]);

  // biome-ignore lint/correctness/useExhaustiveDependencies: new data only; the spec object is new on every render
  useEffect(() => {
    plot.current?.setData(chartData(latest.current.spec));
    read(readout.current, latest.current.spec, plot.current?.cursor.idx ?? null);
  }, [spec.x, spec.lines, spec.marks]);

  const many = spec.lines.filter((l) => !l.context).length > 1;
  return (
    <figure className="min-w-0">
      <figcaption className="flex items-baseline justify-between gap-3 pb-1">
        <span className="truncate font-medium text-ink text-sm">
          {title} {about && <span className="font-normal text-ink-3 text-xs">{about}</span>}
        </span>
        <span ref={readout} className="num shrink-0 whitespace-pre text-ink-2 text-xs" />
      </figcaption>
      <div ref={frame} style={{ height: spec.height }} role="img" aria-label={`${title}: ${summary(spec)}`} />
      {legend && many && spec.lines.length <= 16 && <Legend lines={spec.lines} className="pl-[66px]" />}
    </figure>
  );
}

/** Marks are drawn from the newest spec, so a new event needs no new chart. */
function liveSpec(spec: ChartSpec, latest: { current: { spec: ChartSpec } }): ChartSpec {
  return Object.defineProperty({ ...spec }, "marks", { get: () => latest.current.spec.marks });
}

function read(element: HTMLElement | null, spec: ChartSpec, index: number | null): void {
  if (!element) return;
  const at = index ?? lastIndex(spec);
  const x = spec.x[at];
  if (x === undefined) {
    element.textContent = "";
    return;
  }
  const values = spec.lines.filter((l) => !l.context).map((l) => heldAt(l.values, at));
  const shown =
    values.length <= 2 ? values.map((v) => quantity(v, spec.unit, spec.rate)) : [spread(values, spec)];
  const head = index === null ? "" : `${spec.xIs === "time" ? when(x, serverNow()) : `step ${x}`}  `;
  element.textContent = head + shown.join("  ");
}

function spread(values: (number | null)[], spec: ChartSpec): string {
  const known = values.filter((v): v is number => v !== null);
  if (known.length === 0) return "–";
  const text = (v: number) => quantity(v, spec.unit, spec.rate);
  const [low, high] = [text(Math.min(...known)), text(Math.max(...known))];
  return low === high ? low : `${low} … ${high}`;
}

function lastIndex(spec: ChartSpec): number {
  for (let i = spec.x.length - 1; i > 0; i -= 1) {
    if (spec.lines.some((l) => !l.context && l.values[i] != null)) return i;
  }
  return 0;
}

function summary(spec: ChartSpec): string {
  const known = spec.lines.flatMap((l) => l.values).filter((v): v is number => v != null);
  if (known.length === 0) return "no data";
  const text = (v: number) => quantity(v, spec.unit, spec.rate);
  return `from ${text(known.reduce((a, b) => Math.min(a, b)))} to ${text(known.reduce((a, b) => Math.max(a, b)))}`;
}

export function Legend({ lines, className }: { lines: Line[]; className?: string }) {
  const dark = useDark();
  let color = 0;
  return (
    <ul className={cx("flex flex-wrap gap-x-3 gap-y-0.5 pt-1 text-ink-2 text-xs", className)}>
      {lines.map((line) => {
        const style = line.context ? { stroke: "var(--ink-3)", dash: [4, 3] } : lineStyle(color++, dark);
        return (
          <li key={line.label} className="inline-flex items-center gap-1.5">
            <svg width="16" height="4" aria-hidden="true">
              <path
                d="M0 2h16"
                stroke={style.stroke}
                strokeWidth="2"
                strokeDasharray={style.dash.join(" ")}
              />
            </svg>
            {line.label}
          </li>
        );
      })}
    </ul>
  );
}
