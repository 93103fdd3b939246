/** uPlot options for the charts: axes with units, marks, threshold, envelope. One component owns each chart. */
import uPlot from "uplot";
import { tickLabels } from "@/lib/format";
import { clock } from "@/lib/time";
import type { Column } from "./bridge";
import { lineStyle, token } from "./color";

export interface Line {
  label: string;
  values: Column;
  /** Minimum and maximum behind each mean, where one point covers many samples. */
  low?: Column;
  high?: Column;
  /** Context such as peers: thin, dashed, behind. */
  context?: boolean;
  /** Drawn strong; the other lines fade. */
  focus?: boolean;
}

export interface Mark {
  x: number;
  tone: string;
  label: string;
}

export interface ChartSpec {
  x: number[];
  xIs: "time" | "step";
  lines: Line[];
  unit: string;
  rate?: boolean;
  marks?: Mark[];
  threshold?: number | null;
  /** Ratios are drawn from 0 to 1 unless a value is larger. */
  range?: [number, number];
  syncKey?: string;
  height: number;
}

const DAY = 86_400;

function timeLabels(_: uPlot, splits: number[], _axis: number, _space: number, increment: number): string[] {
  return splits.map((t) => {
    if (increment >= DAY) {
      const d = new Date(t * 1000);
      return `${d.getMonth() + 1}-${String(d.getDate()).padStart(2, "0")}`;
    }
    return increment < 60 ? clock(t) : clock(t).slice(0, 5);
  });
}

// uPlot's own list jumps from one minute to five.
const SECONDS = [
  1,
  2,
  5,
  10,
  15,
  30,
  60,
  120,
  300,
  600,
  900,
  1800,
  3600,
  7200,
  10_800,
  21_600,
  43_200,
  DAY,
  2 * DAY,
  7 * DAY,
];
// Whole powers of two: "512 MiB" and "1 GiB" are round where "500000000 B" is not.
const POWERS = Array.from({ length: 56 }, (_, n) => 2 ** n);

function axes(spec: ChartSpec): uPlot.Axis[] {
  const ink = token("ink-3");
  const grid = { stroke: token("line"), width: 1 };
  const font = '11px "Geist", sans-serif';
  const common = { stroke: ink, font, ticks: { show: false }, grid };
  return [
    {
      ...common,
      size: 24,
      ...(spec.xIs === "time" ? { incrs: SECONDS } : {}),
      gap: 4,
      grid: { show: false },
      values:
        spec.xIs === "time"
          ? timeLabels
          : (_, splits) => splits.map((s) => (Number.isInteger(s) ? `${s}` : "")),
    },
    {
      ...common,
      size: 66,
      gap: 6,
      space: 34,
      ...(spec.unit === "B" ? { incrs: POWERS } : {}),
      values: (_, splits) => tickLabels(splits, spec.unit, spec.rate),
    },
  ];
}

/** Columns as uPlot wants them: x, then mean (low, high) of every line. */
export function chartData(spec: ChartSpec): uPlot.AlignedData {
  const columns: Column[] = [];
  for (const line of spec.lines) {
    columns.push(line.values);
    if (line.low && line.high) columns.push(line.low, line.high);
  }
  return [spec.x, ...columns] as uPlot.AlignedData;
}

/** The column of each line's mean. */
export function columnsOf(lines: Line[]): number[] {
  let at = 1;
  return lines.map((line) => {
    const column = at;
    at += line.low && line.high ? 3 : 1;
    return column;
  });
}

function seriesAndBands(spec: ChartSpec, dark: boolean): Pick<uPlot.Options, "series" | "bands"> {
  const series: uPlot.Series[] = [{}];
  const bands: uPlot.Band[] = [];
  const focused = spec.lines.some((line) => line.focus);
  let color = 0;
  for (const line of spec.lines) {
    const style = line.context ? { stroke: token("ink-3"), dash: [4, 3] } : lineStyle(color++, dark);
    const faded = focused && !line.focus && !line.context;
    series.push({
      label: line.label,
      stroke: style.stroke,
      dash: style.dash,
      width: line.context ? 1 : line.focus ? 2.2 : 1.5,
      alpha: faded ? 0.3 : 1,
      spanGaps: false,
      points: { show: spec.x.length < 3, size: 5 },
    });
    if (line.low && line.high) {
      series.push({ stroke: "transparent", width: 0, points: { show: false } });
      series.push({ stroke: "transparent", width: 0, points: { show: false } });
      bands.push({
        series: [series.length - 1, series.length - 2],
        fill: alpha(style.stroke, faded ? 0.05 : 0.16),
      });
    }
  }
  return { series, bands };
}

function alpha(color: string, share: number): string {
  if (color.startsWith("#"))
    return `${color}${Math.round(share * 255)
      .toString(16)
      .padStart(2, "0")}`;
  return color;
}

function yRange(spec: ChartSpec): uPlot.Range.Function {
  return (_, dataMin, dataMax) => {
    let low = Number.isFinite(dataMin) ? dataMin : 0;
    let high = Number.isFinite(dataMax) ? dataMax : 1;
    if (spec.threshold != null) {
      low = Math.min(low, spec.threshold);
      high = Math.max(high, spec.threshold);
    }
    if (spec.range) return [Math.min(low, spec.range[0]), Math.max(high, spec.range[1])];
    const span = high - low || Math.abs(high) || 1;
    // The axis includes zero where it is near, so that a small variation does not fill the chart.
    const floor = low >= 0 && low < span * 1.5 ? 0 : low - span * 0.12;
    return [floor, high + span * 0.12];
  };
}

function drawMarks(u: uPlot, spec: ChartSpec): void {
  const { ctx, bbox } = u;
  const ratio = uPlot.pxRatio;
  ctx.save();
  ctx.lineWidth = ratio;
  for (const mark of spec.marks ?? []) {
    const x = Math.round(u.valToPos(mark.x, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = token(mark.tone);
    ctx.setLineDash([3 * ratio, 3 * ratio]);
    line(ctx, x, bbox.top, x, bbox.top + bbox.height);
    ctx.fillStyle = ctx.strokeStyle;
    ctx.beginPath();
    ctx.moveTo(x - 4 * ratio, bbox.top);
    ctx.lineTo(x + 4 * ratio, bbox.top);
    ctx.lineTo(x, bbox.top + 6 * ratio);
    ctx.fill();
  }
  if (spec.threshold != null) {
    const y = Math.round(u.valToPos(spec.threshold, "y", true));
    ctx.setLineDash([6 * ratio, 4 * ratio]);
    ctx.strokeStyle = token("quarantined");
    line(ctx, bbox.left, y, bbox.left + bbox.width, y);
  }
  ctx.restore();
}

function line(ctx: CanvasRenderingContext2D, x0: number, y0: number, x1: number, y1: number): void {
  ctx.beginPath();
  ctx.moveTo(x0, y0);
  ctx.lineTo(x1, y1);
  ctx.stroke();
}

interface Callbacks {
  onCursor: (index: number | null) => void;
  onZoom?: (from: number, to: number) => void;
}

export function chartOptions(spec: ChartSpec, width: number, dark: boolean, on: Callbacks): uPlot.Options {
  const cursorLine = token("line-strong");
  return {
    width,
    height: spec.height,
    ...seriesAndBands(spec, dark),
    axes: axes(spec),
    scales: { x: { time: spec.xIs === "time" }, y: { range: yRange(spec) } },
    legend: { show: false },
    padding: [8, 18, 0, 0],
    cursor: {
      y: false,
      points: { size: 6, fill: (_, i) => (i > 0 ? token("surface") : cursorLine) },
      drag: { x: on.onZoom !== undefined, y: false, setScale: false },
      ...(spec.syncKey ? { sync: { key: spec.syncKey, scales: ["x", null] } } : {}),
    },
    hooks: {
      setCursor: [(u) => on.onCursor(u.cursor.idx ?? null)],
      setSelect: [
        (u) => {
          if (u.select.width < 6) return;
          on.onZoom?.(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x"));
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        },
      ],
      draw: [(u) => drawMarks(u, spec)],
    },
  };
}
