/** A reference sample as a cumulative curve, with runs and limits. */
import { plural, quantity, tickLabels } from "@/lib/format";
import type { Tone } from "@/lib/status-styles";
import { useWidth } from "@/lib/use-size";
import { apart, axisOver, beyond, place, refused, stepPath, ticks } from "./ecdf";

export interface EcdfRun {
  key: string;
  /** In ascending order. */
  values: readonly number[];
  tone: Tone;
  name: string;
  /** The run of the page; the others stay in the background. */
  main?: boolean;
}

interface Props {
  label: string;
  unit: string;
  /** In ascending order; empty where only limits apply. */
  reference: readonly number[];
  runs: readonly EcdfRun[];
  low: number | null;
  high: number | null;
  height?: number;
}

const strokeOf = (tone: Tone) => `var(--${tone})`;
// A dash separates failed from passed runs without color.
const dashOf: Partial<Record<Tone, string>> = { quarantined: "6 3", suspect: "3 3", unknown: "1 3" };

export function EcdfChart({ label, unit, reference, runs, low, high, height = 132 }: Props) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const limits = [low, high].filter((limit): limit is number => limit !== null);
  const axis = axisOver([...reference, ...limits, ...runs.flatMap((run) => run.values)]);
  const inner = Math.max(0, width);
  const marks = axis ? ticks(axis, Math.max(2, Math.floor(inner / 110))) : [];
  const names = tickLabels(marks, unit);
  const outliers = runs.flatMap((run) => run.values.filter((value) => beyond(value, low, high)));
  return (
    <div ref={ref} className="min-w-0">
      {axis && inner > 0 && (
        <svg
          role="img"
          aria-label={`${label}: ${about(reference, unit)}; ${limitText(low, high, unit)}; ${plural(outliers.length, "value")} drawn beyond it`}
          width={inner}
          height={height + 20}
          className="block"
        >
          {refused(low, high, axis).map(([from, to]) => (
            <rect
              key={from}
              x={from * inner}
              width={(to - from) * inner}
              height={height}
              fill="var(--quarantined)"
              opacity="0.1"
            />
          ))}
          <path d={`M0 ${height}H${inner}M0 .5H${inner}`} stroke="var(--line)" fill="none" />
          {marks.map((value, i) => (
            <g key={value} transform={`translate(${place(value, axis) * inner} ${height})`}>
              <path d="M0 0v4" stroke="var(--line-strong)" />
              <text
                y="16"
                textAnchor={anchor(place(value, axis) * inner, inner)}
                className="num fill-ink-3 text-2xs"
              >
                {names[i]}
              </text>
            </g>
          ))}
          {limits.map((limit) => (
            <path
              key={limit}
              d={`M${place(limit, axis) * inner} 0V${height}`}
              stroke="var(--quarantined)"
              strokeWidth="1.5"
              strokeDasharray="4 3"
            />
          ))}
          <path
            d={stepPath(reference, axis, inner, height)}
            fill="none"
            stroke="var(--ink-2)"
            strokeWidth="1.75"
          />
          {runs.map((run) => (
            <path
              key={run.key}
              d={
                run.values.length > 1
                  ? stepPath(run.values, axis, inner, height)
                  : `M${place(run.values[0] ?? 0, axis) * inner} 0V${height}`
              }
              fill="none"
              stroke={strokeOf(run.tone)}
              strokeWidth={run.main ? 2.25 : 1.25}
              strokeDasharray={dashOf[run.tone]}
              opacity={run.main ? 1 : 0.7}
            >
              <title>{run.name}</title>
            </path>
          ))}
          {apart(outliers, (value) => place(value, axis) * inner, 7).map((value) => (
            <path
              key={value}
              transform={`translate(${place(value, axis) * inner} ${height - 5})`}
              d="m-3-3 6 6m0-6-6 6"
              stroke="var(--quarantined)"
              strokeWidth="1.75"
            >
              <title>{quantity(value, unit)}</title>
            </path>
          ))}
        </svg>
      )}
    </div>
  );
}

/** Keep a label at the edge inside the chart. */
const anchor = (x: number, width: number) => (x < 40 ? "start" : x > width - 40 ? "end" : "middle");

function about(reference: readonly number[], unit: string): string {
  const first = reference[0];
  const last = reference.at(-1);
  if (first === undefined || last === undefined) return "no reference sample";
  return `reference of ${plural(reference.length, "value")} from ${quantity(first, unit)} to ${quantity(last, unit)}`;
}

export function limitText(low: number | null, high: number | null, unit: string): string {
  if (low !== null && high !== null) return `accepted ${quantity(low, unit)} to ${quantity(high, unit)}`;
  if (low !== null) return `accepted from ${quantity(low, unit)}`;
  if (high !== null) return `accepted up to ${quantity(high, unit)}`;
  return "no limit";
}

/** The legend of the lines, once per panel. */
export function EcdfLegend({ one }: { one: string }) {
  const item = "inline-flex items-center gap-1.5";
  const line = (stroke: string, dash?: string) => (
    <svg width="20" height="8" aria-hidden="true">
      <path d="M0 4h20" stroke={stroke} strokeWidth="2" strokeDasharray={dash} />
    </svg>
  );
  return (
    <ul className="flex flex-wrap gap-x-4 gap-y-1 text-ink-2 text-xs">
      <li className={item}>{line("var(--ink-2)")} reference: share of values at most x</li>
      <li className={item}>
        {line("var(--healthy)")} {one}, passed
      </li>
      <li className={item}>{line("var(--quarantined)", "6 3")} failed</li>
      <li className={item}>{line("var(--suspect)", "3 3")} warned</li>
      <li className={item}>
        <svg width="20" height="10" aria-hidden="true">
          <rect width="20" height="10" fill="var(--quarantined)" opacity="0.14" />
          <path d="m7 2 6 6m0-6-6 6" stroke="var(--quarantined)" strokeWidth="1.75" />
        </svg>
        beyond the limit
      </li>
    </ul>
  );
}
