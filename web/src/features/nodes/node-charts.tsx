/** Small multiples under one crosshair and one window; dragging over any of them narrows all. */
import { useQuery } from "@tanstack/react-query";
import { getRouteApi } from "@tanstack/react-router";
import { useMemo } from "react";
import type { Node, Signal, Telemetry } from "@/api/types";
import type { Line, Mark } from "@/charts/chart-options";
import { Legend, TimeChart } from "@/charts/time-chart";
import { signalsQuery } from "@/features/fleet/queries";
import { plural, signalLabel } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { clock } from "@/lib/time";
import { Button } from "@/ui/button";
import { Empty, ErrorNotice, StaleStrip } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { Segmented } from "@/ui/segmented";
import { Select } from "@/ui/select";
import { Skeleton } from "@/ui/skeleton";
import { chartedSignals, eventMarks, hasData, linesFor, pointsFor, specBasics } from "./chart-model";
import { nodeEventsQuery, telemetryQuery } from "./queries";
import { type SpanName, spanSeconds, spans } from "./search";

const route = getRouteApi("/shell/nodes/$name");

export function NodeCharts({ node }: { node: Node }) {
  const { span = "5m", from, to, device } = route.useSearch();
  const navigate = route.useNavigate();
  const signals = useQuery(signalsQuery());
  const events = useQuery(nodeEventsQuery(node.name));
  const gpus = node.devices.filter((d) => d.kind === "gpu");
  const charted = useMemo(
    () => chartedSignals(signals.data ?? [], gpus.length > 0),
    [signals.data, gpus.length],
  );
  const fixed = from !== undefined && to !== undefined;
  const seconds = fixed ? to - from : spanSeconds[span];
  const polling = usePolling(4_000, 4_000);
  const query = useQuery({
    ...telemetryQuery({
      node: node.name,
      signals: charted.map((s) => s.name),
      span: seconds,
      points: pointsFor(seconds),
      ...(fixed ? { from, to } : {}),
    }),
    refetchInterval: fixed ? false : polling,
  });
  const marks = useMemo(() => eventMarks(events.data?.items), [events.data]);
  const set = (change: { span?: SpanName; from?: number; to?: number; device?: string }) =>
    void navigate({
      search: (old) => ({ ...old, from: undefined, to: undefined, ...change }),
      replace: true,
    });

  return (
    <Panel
      title="Measurements"
      about={fixed ? `${clock(from)} to ${clock(to)}` : "drag over a chart to zoom"}
      aside={
        <>
          {gpus.length > 1 && (
            <Select
              label="Device"
              value={device ?? "all"}
              onChange={(value) =>
                void navigate({
                  search: (old) => ({ ...old, device: value === "all" ? undefined : value }),
                  replace: true,
                })
              }
              groups={[
                {
                  options: [
                    { value: "all", label: "All GPUs" },
                    ...gpus.map((gpu) => ({ value: gpu.id, label: gpu.id })),
                  ],
                },
              ]}
            />
          )}
          {fixed && (
            <Button icon="reset" onClick={() => set({})}>
              Follow now
            </Button>
          )}
          <Segmented
            label="Time span"
            value={fixed ? ("" as SpanName) : span}
            onChange={(value) => set({ span: value })}
            options={spans.map((value) => ({ value, label: value }))}
          />
        </>
      }
    >
      {query.isError && query.data && (
        <div className="mb-3">
          <StaleStrip since={query.dataUpdatedAt / 1000} error={query.error} />
        </div>
      )}
      {query.isError && !query.data ? (
        <ErrorNotice error={query.error} onRetry={() => void query.refetch()} />
      ) : (
        <Multiples
          signals={charted}
          telemetry={query.data}
          device={device}
          marks={marks}
          onZoom={(a, b) => set({ from: Math.floor(a), to: Math.ceil(b) })}
        />
      )}
    </Panel>
  );
}

interface MultiplesProps {
  signals: Signal[];
  telemetry: Telemetry | undefined;
  device: string | undefined;
  marks: Mark[];
  onZoom: (from: number, to: number) => void;
}

function Multiples({ signals, telemetry, device, marks, onZoom }: MultiplesProps) {
  const charts = useMemo(
    () =>
      signals.map((signal) => ({
        signal,
        lines: linesFor(telemetry, signal.name, signal.source === "gpu" ? device : undefined),
      })),
    [signals, telemetry, device],
  );
  if (!telemetry) return <Loading />;
  const drawn = charts.filter((chart) => hasData(chart.lines));
  const silent = charts.filter((chart) => !hasData(chart.lines));
  if (drawn.length === 0) {
    return (
      <Empty title="Nothing was measured in this window.">
        A silent probe is itself a finding: if the node should report, the reason stands beside its state
        above.
      </Empty>
    );
  }
  return (
    <>
      {(["gpu", "host"] as const).map((source) => (
        <Group
          key={source}
          source={source}
          charts={drawn.filter((chart) => chart.signal.source === source)}
          x={telemetry.t}
          marks={marks}
          onZoom={onZoom}
        />
      ))}
      {silent.length > 0 && (
        <p className="mt-4 text-ink-3 text-xs">
          No data in this window for {plural(silent.length, "signal")}:{" "}
          {silent.map((chart) => signalLabel(chart.signal.name)).join(", ")}.
        </p>
      )}
    </>
  );
}

interface GroupProps {
  source: "gpu" | "host";
  charts: { signal: Signal; lines: Line[] }[];
  x: number[];
  marks: Mark[];
  onZoom: (from: number, to: number) => void;
}

function Group({ source, charts, x, marks, onZoom }: GroupProps) {
  const widest = charts.reduce<Line[]>(
    (most, chart) => (chart.lines.length > most.length ? chart.lines : most),
    [],
  );
  if (charts.length === 0) return null;
  return (
    <section aria-label={source === "gpu" ? "GPU" : "Host"} className="not-first:mt-6">
      {widest.length > 1 && <Legend lines={widest} className="mb-3" />}
      <div className="grid gap-x-6 gap-y-4 md:grid-cols-2 2xl:grid-cols-3">
        {charts.map(({ signal, lines }) => (
          <TimeChart
            key={signal.name}
            {...specBasics(signal)}
            x={x}
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
    </section>
  );
}

function Loading() {
  return (
    <div role="status" aria-label="Loading" className="grid gap-x-6 gap-y-5 md:grid-cols-2">
      {["a", "b", "c", "d"].map((key) => (
        <Skeleton key={key} className="h-36" />
      ))}
    </div>
  );
}
