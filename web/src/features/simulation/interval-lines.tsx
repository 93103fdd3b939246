/** Lines with intervals over a value or over time, separated by color, dash, and marker. */
import { lineStyle } from "@/charts/color";
import { type Axis, apart, axisOver, place, ticks } from "@/charts/ecdf";
import { percent, tickLabels } from "@/lib/format";
import { useWidth } from "@/lib/use-size";
import type { Point, Series } from "./model";

interface Props {
  series: Series[];
  xName: string;
  logarithmic: boolean;
  /** Whether each point is a simulated value, with a marker and its interval. */
  marked: boolean;
  height?: number;
}

const LEFT = 52;
const RIGHT = 16;
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "4 4", "12 4"];
const MARKERS = [
  "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
  "M-4-4h8v8h-8z",
  "M0-5l5 9h-10z",
  "M0-5l5 5-5 5-5-5z",
  "M0 5l5-9h-10z",
  "M-4-4l8 8m0-8l-8 8",
];
const paint = (n: number) => `light-dark(${lineStyle(n, false).stroke}, ${lineStyle(n, true).stroke})`;

export function IntervalLines({ series, xName, logarithmic, marked, height = 240 }: Props) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const points = series.flatMap((one) => one.points);
  const scale = logarithmic ? Math.log10 : (value: number) => value;
  const across = axisOver(
    points.map((point) => scale(point.x)),
    marked ? 0.03 : 0,
  );
  const up = upAxis(points);
  const inner = width - LEFT - RIGHT;
  if (points.length === 0) return null;
  const x = (value: number) => (across ? LEFT + place(scale(value), across) * inner : LEFT);
  const y = (value: number) => (up ? (1 - place(value, up)) * height : 0);
  return (
    <div ref={ref} className="min-w-0">
      {across && up && inner > 0 && (
        <svg
          role="img"
          aria-label={about(series, xName)}
          width={width}
          height={height + 44}
          className="block overflow-visible"
        >
          <Grid up={up} y={y} to={width - RIGHT} />
          <Below
            values={[...new Set(points.map((point) => point.x))]}
            x={x}
            marked={marked}
            height={height}
          />
          <text x={LEFT + inner / 2} y={height + 38} textAnchor="middle" className="fill-ink-3 text-2xs">
            {xName}
          </text>
          {series.map((one, n) => (
            <Line key={one.name} one={one} n={n} x={x} y={y} marked={marked} />
          ))}
        </svg>
      )}
    </div>
  );
}

/** Ratios end at 1. */
function upAxis(points: Point[]): Axis | null {
  const axis = axisOver(points.flatMap((point) => [point.low, point.high]));
  return axis === null ? null : { from: axis.from, to: Math.min(1, axis.to) };
}

interface LineProps {
  one: Series;
  n: number;
  x: (value: number) => number;
  y: (value: number) => number;
  marked: boolean;
}

function Line({ one, n, x, y, marked }: LineProps) {
  const color = { stroke: paint(n) };
  const path = one.points
    .map((p, i) => `${i ? "L" : "M"}${x(p.x).toFixed(1)} ${y(p.mean).toFixed(1)}`)
    .join("");
  return (
    <g>
      <path
        d={path}
        fill="none"
        strokeWidth="1.75"
        strokeDasharray={DASHES[n % DASHES.length]}
        style={color}
      />
      {marked &&
        one.points.map((point) => (
          <g key={point.x} transform={`translate(${x(point.x)} 0)`} style={{ ...color, fill: paint(n) }}>
            <path d={`M-3 ${y(point.low)}h6m-3 0V${y(point.high)}m-3 0h6`} fill="none" strokeWidth="1.25" />
            <path
              d={MARKERS[n % MARKERS.length]}
              transform={`translate(0 ${y(point.mean)})`}
              strokeWidth="1.25"
            >
              <title>{`${one.description}: ${percent(point.mean, 2)}`}</title>
            </path>
          </g>
        ))}
    </g>
  );
}

function Grid({ up, y, to }: { up: Axis; y: (value: number) => number; to: number }) {
  const marks = ticks(up, 5);
  const names = tickLabels(marks, "ratio");
  return marks.map((value, i) => (
    <g key={value}>
      <path d={`M${LEFT} ${y(value)}H${to}`} stroke="var(--line)" />
      <text x={LEFT - 8} y={y(value) + 4} textAnchor="end" className="num fill-ink-3 text-2xs">
        {names[i]}
      </text>
    </g>
  ));
}

interface BelowProps {
  values: number[];
  x: (value: number) => number;
  /** Ticks are at the simulated values, else at round ones. */
  marked: boolean;
  height: number;
}

function Below({ values, x, marked, height }: BelowProps) {
  const least = Math.min(...values);
  const most = Math.max(...values);
  const marks = marked ? apart(values, x, 44) : ticks({ from: 0, to: most }, 8);
  const names = tickLabels(marks, "");
  return (
    <>
      <path d={`M${x(least)} ${height}H${x(most)}`} stroke="var(--line-strong)" />
      {marks
        .filter((value) => value >= least)
        .map((value) => (
          <g key={value} transform={`translate(${x(value)} ${height})`}>
            <path d="M0 0v4" stroke="var(--line-strong)" />
            <text y="16" textAnchor="middle" className="num fill-ink-3 text-2xs">
              {names[marks.indexOf(value)]}
            </text>
          </g>
        ))}
    </>
  );
}

function about(series: Series[], xName: string): string {
  const reported = series.map(({ description, points }) => {
    const first = points[0];
    const last = points.at(-1);
    return first && last
      ? `${description} from ${percent(first.mean, 2)} to ${percent(last.mean, 2)}`
      : description;
  });
  return `ETTR over ${xName}: ${reported.join("; ")}`;
}

export function LineLegend({ series, marked }: { series: Series[]; marked: boolean }) {
  return (
    <ul aria-label="Lines" className="mt-1 flex flex-wrap gap-x-5 gap-y-1 text-ink-2 text-xs">
      {series.map((one, n) => (
        <li key={one.name} className="inline-flex items-center gap-1.5">
          <svg width="30" height="12" aria-hidden="true" style={{ stroke: paint(n), fill: paint(n) }}>
            <path d="M0 6h30" strokeWidth="1.75" strokeDasharray={DASHES[n % DASHES.length]} />
            {marked && <path d={MARKERS[n % MARKERS.length]} transform="translate(15 6)" />}
          </svg>
          {one.description}
        </li>
      ))}
    </ul>
  );
}
