/** One metric before and after: its change with an interval, and both distributions. */
import { type ReactNode, useState } from "react";
import type { Verdict } from "@/api/types";
import { EcdfChart } from "@/charts/ecdf-chart";
import { plural, signalLabel } from "@/lib/format";
import { statusStyleOf, verdict as verdicts } from "@/lib/status-styles";
import { Icon } from "@/ui/icon";
import { StatePill } from "@/ui/state-pill";

interface Props {
  benchmark: string;
  metric: string;
  /** The device, where rows show several devices. */
  device?: string;
  unit: string;
  verdict: Verdict;
  change: string;
  sure?: string;
  reason: ReactNode;
  /** Both in ascending order. */
  before: readonly number[];
  after: readonly number[];
  /** The unit of one value: "device" or "repetition". */
  one: string;
  /** Whether the row is open at first. */
  shown?: boolean;
  children?: ReactNode;
}

export function ChangeRow(props: Props) {
  const { benchmark, metric, device, unit, verdict, change, sure, reason, before, after, one, children } =
    props;
  const [open, setOpen] = useState(props.shown ?? false);
  const look = statusStyleOf(verdicts, verdict);
  const drawn = before.length > 0 || after.length > 0;
  const name = `${benchmark} ${signalLabel(metric)}${device ? ` of ${device}` : ""}`;
  return (
    <li className="border-line border-t px-4 py-2 text-sm">
      <div className="grid grid-cols-[minmax(0,15rem)_11rem_5.5rem_minmax(0,1fr)_2rem] items-center gap-x-4 gap-y-1 max-lg:grid-cols-[minmax(0,1fr)_auto_2rem]">
        <span className="min-w-0 break-words">
          {device && <span className="num mr-2 text-ink-3 text-xs">{device}</span>}
          <span className="font-medium">{signalLabel(metric)}</span>{" "}
          <span className="font-mono text-ink-3 text-xs">{benchmark}</span>
        </span>
        <span className="num max-lg:order-2 max-lg:col-span-3">
          <span className="font-medium">{change}</span>
          {sure && <span className="block text-ink-3 text-xs">{sure}</span>}
        </span>
        <StatePill look={look} quiet />
        <span className="min-w-0 text-ink-2 text-xs first-letter:uppercase max-lg:order-3 max-lg:col-span-3">
          {reason}
        </span>
        {drawn ? (
          <button
            type="button"
            aria-expanded={open}
            aria-label={`Distributions of ${name}`}
            onClick={() => setOpen(!open)}
            className="inline-flex size-7 items-center justify-center rounded-md text-ink-3 hover:bg-hover hover:text-ink"
          >
            <span className={open ? "" : "-rotate-90"}>
              <Icon name="down" size={14} />
            </span>
          </button>
        ) : (
          <span />
        )}
      </div>
      {open && drawn && (
        <div className="flex flex-col gap-2 pt-2 pb-1">
          <EcdfChart
            label={`${name}, ${plural(before.length, one)} before and ${plural(after.length, one)} after`}
            unit={unit}
            reference={before}
            runs={
              after.length > 0
                ? [{ key: "after", name: "after", values: after, tone: look.tone, main: true }]
                : []
            }
            low={null}
            high={null}
          />
          <p className="text-ink-3 text-xs">
            Gray: before, {plural(before.length, one)}. Colored: after, {plural(after.length, one)}. Height:
            the ratio of values up to x.
          </p>
          {children}
        </div>
      )}
    </li>
  );
}
