/** One family of a node's charts. It is closed at first, because each family needs its own query. */
import { useQuery } from "@tanstack/react-query";
import { useId, useMemo } from "react";
import type { Node, Signal, Telemetry } from "@/api/types";
import type { Line, Mark } from "@/charts/chart-options";
import { Legend, TimeChart } from "@/charts/time-chart";
import { namesOf } from "@/features/devices/device-labels";
import { type FamilySignals, families } from "@/features/signals/families";
import { cx } from "@/lib/cx";
import { plural, signalLabel } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { Icon } from "@/ui/icon";
import { ErrorNotice, StaleStrip } from "@/ui/notice";
import { Skeleton } from "@/ui/skeleton";
import { hasData, linesFor, pointsFor, refreshInterval, specBasics } from "./chart-model";
import { telemetryQuery } from "./queries";

interface Props {
  family: FamilySignals;
  node: Node;
  device: string | undefined;
  window: { span: number; from?: number; to?: number };
  marks: Mark[];
  open: boolean;
  onToggle: () => void;
  onZoom: (from: number, to: number) => void;
}

export function ChartFamily({ family, open, onToggle, ...rest }: Props) {
  const body = useId();
  const { label, about } = families[family.id];
  return (
    <section aria-label={`${label}, charts`} className="border-line border-t first:border-t-0">
      <h3>
        <button
          type="button"
          aria-expanded={open}
          aria-controls={body}
          onClick={onToggle}
          className="group flex w-full items-baseline gap-2 py-2 text-left"
        >
          <span
            className={cx("self-center text-ink-3 transition-transform duration-100", open && "rotate-90")}
          >
            <Icon name="right" size={12} />
          </span>
          <span className="font-medium text-ink text-sm group-hover:underline">{label}</span>
          <span className="truncate text-ink-3 text-xs max-sm:hidden">{about}</span>
          <span className="num ml-auto shrink-0 text-ink-3 text-xs">
            {plural(family.signals.length, "signal")}
          </span>
        </button>
      </h3>
      {open && (
        <div id={body} className="pb-4">
          <Body family={family} {...rest} />
        </div>
      )}
    </section>
  );
}

type BodyProps = Omit<Props, "open" | "onToggle">;

function Body({ family, node, device, window, marks, onZoom }: BodyProps) {
  const interval = refreshInterval(window.span);
  const polling = usePolling(interval, interval);
  const fixed = window.from !== undefined;
  const query = useQuery({
    ...telemetryQuery({
      node: node.name,
      signals: family.signals.map((s) => s.name),
      points: pointsFor(window.span),
      ...window,
    }),
    refetchInterval: fixed ? false : polling,
  });
  if (query.isError && !query.data)
    return <ErrorNotice error={query.error} onRetry={() => void query.refetch()} />;
  if (!query.data) return <ChartsLoading />;
  const own = families[family.id].source;
  const chosen = node.devices.find((candidate) => candidate.id === device);
  return (
    <>
      {query.isError && (
        <div className="mb-3">
          <StaleStrip since={query.dataUpdatedAt / 1000} error={query.error} />
        </div>
      )}
      <Multiples
        signals={family.signals}
        telemetry={query.data}
        device={chosen?.kind === own ? chosen.id : undefined}
        devices={node.devices}
        marks={marks}
        onZoom={onZoom}
      />
    </>
  );
}

interface MultiplesProps {
  signals: Signal[];
  telemetry: Telemetry;
  /** A selected GPU filters only the GPU families, a selected port only the port families. */
  device: string | undefined;
  devices: Node["devices"];
  marks: Mark[];
  onZoom: (from: number, to: number) => void;
}

function Multiples({ signals, telemetry, device, devices, marks, onZoom }: MultiplesProps) {
  const charts = useMemo(() => {
    const name = namesOf(devices);
    return signals.map((signal) => ({ signal, lines: linesFor(telemetry, signal.name, device, name) }));
  }, [signals, telemetry, device, devices]);
  const drawn = charts.filter((chart) => hasData(chart.lines));
  const silent = charts.filter((chart) => !hasData(chart.lines));
  if (drawn.length === 0) {
    return (
      <p className="text-ink-3 text-sm">
        No data in this window. The node daemon does not report, or these devices do not have these signals.
      </p>
    );
  }
  const widest = drawn.reduce<Line[]>(
    (most, chart) => (chart.lines.length > most.length ? chart.lines : most),
    [],
  );
  return (
    <>
      {widest.length > 1 && <Legend lines={widest} className="mb-3" />}
      <div className="grid gap-x-6 gap-y-4 md:grid-cols-2 2xl:grid-cols-3">
        {drawn.map(({ signal, lines }) => (
          <TimeChart
            key={signal.name}
            {...specBasics(signal)}
            x={telemetry.t}
            xIs="time"
            lines={lines}
            marks={marks}
            height={116}
            syncKey="node"
            legend={false}
            onZoom={onZoom}
          />
        ))}
      </div>
      {silent.length > 0 && (
        <p className="mt-3 text-ink-3 text-xs">
          No data in this window for {plural(silent.length, "signal")}:{" "}
          {silent.map((chart) => signalLabel(chart.signal.name)).join(", ")}.
        </p>
      )}
    </>
  );
}

export function ChartsLoading() {
  return (
    <div role="status" aria-label="Loading" className="grid gap-x-6 gap-y-5 md:grid-cols-2">
      {["a", "b"].map((key) => (
        <Skeleton key={key} className="h-36" />
      ))}
    </div>
  );
}
