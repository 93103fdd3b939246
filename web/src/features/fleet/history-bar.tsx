/** The states of the fleet over time, with a handle that chooses the time of the map. */
import { useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import type { FleetHistory, HealthState } from "@/api/types";
import { TimeAxis } from "@/charts/time-axis";
import { usePolling } from "@/lib/live";
import { dateTime, serverNow } from "@/lib/time";
import { Button } from "@/ui/button";
import { ErrorNotice } from "@/ui/notice";
import { Segmented } from "@/ui/segmented";
import { Skeleton } from "@/ui/skeleton";
import { bucketOf, bucketText, endFor, type HistoryRange, rangeSeconds, statePaths } from "./history-model";
import { historyQuery } from "./queries";

export interface HistoryProps {
  /** Unix seconds; undefined for the present. */
  at: number | undefined;
  onAt: (at: number | undefined) => void;
  range: HistoryRange;
  onRange: (range: HistoryRange) => void;
}

const ranges = [
  { value: "1h", label: "1 h" },
  { value: "24h", label: "24 h" },
  { value: "7d", label: "7 days" },
  { value: "30d", label: "30 days" },
] as const;
const fills: Record<HealthState, string> = {
  healthy: "fill-healthy",
  suspect: "fill-suspect",
  draining: "fill-draining",
  quarantined: "fill-quarantined",
  validating: "fill-validating",
  unknown: "fill-unknown",
};
/** A moving handle asks for a map once it rests so long, in milliseconds. */
const REST = 120;

export function HistoryBar({ at, onAt, range, onRange }: HistoryProps) {
  const [until, setUntil] = useState(() => endFor(at, range, serverNow()));
  const polling = usePolling(30_000, 30_000);
  const history = useQuery({
    ...historyQuery(rangeSeconds[range], until),
    refetchInterval: at === undefined && polling,
    refetchOnWindowFocus: at === undefined,
  });
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  return (
    <section aria-label="History" className="mb-4">
      <div className="mb-2 flex flex-wrap items-center gap-2">
        <Segmented
          label="Range of the history"
          value={range}
          onChange={(next) => {
            setUntil(endFor(at, next, serverNow()));
            onRange(next);
          }}
          options={ranges}
        />
        <Button
          aria-pressed={at === undefined}
          kind={at === undefined ? "ghost" : "primary"}
          onClick={() => {
            setUntil(undefined);
            onAt(undefined);
          }}
        >
          Live
        </Button>
        <span className="ml-auto text-ink-3 text-xs">Marks: incidents opened · Time zone {zone}</span>
      </div>
      {history.data ? (
        <Scrub history={history.data} at={at} onAt={onAt} live={until === undefined} />
      ) : history.isError ? (
        <ErrorNotice error={history.error} onRetry={() => void history.refetch()} />
      ) : (
        <Skeleton className="h-19" />
      )}
    </section>
  );
}

interface ScrubProps extends Pick<HistoryProps, "at" | "onAt"> {
  history: FleetHistory;
  /** Whether the last bucket is the present. */
  live: boolean;
}

function Scrub({ history, at, onAt, live }: ScrubProps) {
  const last = history.times.length - 1;
  const [moved, setMoved] = useState<number | null>(null);
  // biome-ignore lint/correctness/useExhaustiveDependencies: another time or range ends a move
  useEffect(() => setMoved(null), [at, history]);
  useEffect(() => {
    if (moved === null) return;
    const timer = setTimeout(() => onAt(live && moved === last ? undefined : history.times[moved]), REST);
    return () => clearTimeout(timer);
  }, [moved, live, last, history, onAt]);
  const bucket = moved ?? (at === undefined ? last : bucketOf(history, at));
  // A past time in the last bucket is not the present.
  const present = live && bucket === last && (moved !== null || at === undefined);
  const time = moved === null && at !== undefined ? at : (history.times[bucket] ?? history.until);
  const text = bucketText(history, bucket);
  const half = `${50 / (last + 1)}%`;
  return (
    <>
      <div className="relative h-11">
        <Columns history={history} />
        {/* The browser's own slider has the keys, the touch, and the role; the line below shows where it is. */}
        <input
          type="range"
          aria-label="Time of the map"
          aria-valuetext={`${present ? "Live" : dateTime(time)}: ${text}`}
          min={0}
          max={last}
          value={bucket}
          onChange={(event) => setMoved(event.target.valueAsNumber)}
          className="peer absolute inset-y-0 m-0 h-full cursor-ew-resize touch-pan-y opacity-0"
          style={{ left: `calc(${half} - 8px)`, width: `calc(100% - 2 * ${half} + 16px)` }}
        />
        <div
          aria-hidden="true"
          className="pointer-events-none absolute -inset-y-1 w-1 -translate-x-1/2 rounded-full bg-ink ring-2 ring-surface peer-focus-visible:ring-accent"
          style={{ left: `${((bucket + 0.5) / (last + 1)) * 100}%` }}
        />
      </div>
      <TimeAxis
        start={history.since}
        end={history.until}
        last={live && at === undefined ? "now" : undefined}
      />
      <p className="num min-h-4 pt-1 text-ink-2 text-xs">
        <b className="font-semibold text-ink">{present ? "Now" : dateTime(time)}</b> {text}
      </p>
    </>
  );
}

/** A column per bucket: nodes by state, and a mark above it where incidents opened. */
function Columns({ history }: { history: FleetHistory }) {
  const buckets = history.times.length;
  const opened = history.incidents.map((count, bucket) => (count > 0 ? `M${bucket} 0h1v1h-1z` : "")).join("");
  return (
    <>
      <svg
        aria-hidden="true"
        viewBox={`0 0 ${buckets} 1`}
        preserveAspectRatio="none"
        className="absolute inset-x-0 top-0 h-1.5 w-full fill-ink"
      >
        <path d={opened} />
      </svg>
      <svg
        aria-hidden="true"
        viewBox={`0 0 ${buckets} 1`}
        preserveAspectRatio="none"
        className="absolute inset-x-0 bottom-0 h-8 w-full rounded-[3px] bg-sunken"
      >
        {statePaths(history).map(({ state, path }) => (
          <path key={state} d={path} className={fills[state]} shapeRendering="crispEdges" />
        ))}
      </svg>
    </>
  );
}
