import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { useMemo } from "react";
import type { Job } from "@/api/types";
import { TimeChart } from "@/charts/time-chart";
import { humanize, plural } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { severity, statusStyleOf } from "@/lib/status-styles";
import { Button } from "@/ui/button";
import { Glyph } from "@/ui/glyph";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { Skeleton } from "@/ui/skeleton";
import { entityText, type MarkedFinding, marksOf, onAxis } from "./findings-model";
import { findingsQuery, signalsQuery } from "./queries";
import { lossLine, spreadLines } from "./signal-lines";
import type { JobSignals } from "./types";

const route = getRouteApi("/shell/jobs/$id");
const NAMES = ["loss", "gradient_norm", "step_time_seconds"];

/** Loss, gradient norm, and step time over the steps of the map, with findings at their steps. */
export function SignalCharts({ job }: { job: Job }) {
  const { rank, from, to } = route.useSearch();
  const navigate = route.useNavigate();
  const polling = usePolling(5_000, 5_000);
  const query = useQuery({
    ...signalsQuery(job.id, job.topology.world_size, NAMES, from, to),
    refetchInterval: to === undefined && job.finished_at === null ? polling : false,
  });
  const zoomed = from !== undefined || to !== undefined;
  const zoom = (a?: number, b?: number) =>
    void navigate({ search: (old) => ({ ...old, from: a, to: b }), replace: true, resetScroll: false });
  return (
    <Panel
      title="Values over steps"
      about={zoomed ? `steps ${from ?? 0} to ${to ?? "now"}` : "drag to zoom in; the map follows"}
      aside={
        zoomed && (
          <Button icon="reset" onClick={() => zoom()}>
            All steps
          </Button>
        )
      }
    >
      <QueryView query={query} loading={<Skeleton className="h-48" />}>
        {(data) =>
          data.steps.length === 0 ? (
            <Empty title="No steps reported yet." />
          ) : (
            <Charts
              job={job}
              data={data}
              rank={rank}
              onZoom={(a, b) => zoom(Math.max(0, Math.floor(a)), Math.ceil(b))}
            />
          )
        }
      </QueryView>
    </Panel>
  );
}

interface ChartsProps {
  job: Job;
  data: JobSignals;
  rank: number | undefined;
  onZoom: (from: number, to: number) => void;
}

function Charts({ job, data, rank, onZoom }: ChartsProps) {
  const findings = useQuery({ ...findingsQuery(job.id), refetchInterval: usePolling(15_000, 8_000) });
  const marked = useMemo(() => onAxis(findings.data ?? [], data.steps), [findings.data, data.steps]);
  const marks = useMemo(() => marksOf(marked), [marked]);
  const loss = useMemo(() => lossLine(data), [data]);
  const norm = useMemo(() => spreadLines(data, "gradient_norm", rank), [data, rank]);
  const pace = useMemo(() => spreadLines(data, "step_time_seconds", rank), [data, rank]);
  const common = { x: data.steps, xIs: "step" as const, syncKey: "steps", onZoom, marks };
  return (
    <div className="flex flex-col gap-4">
      {loss && <TimeChart {...common} title="Loss" unit="1" lines={loss} height={130} />}
      {norm && <TimeChart {...common} title="Gradient norm" unit="1" lines={norm} height={130} />}
      {pace && <TimeChart {...common} title="Step time" unit="s" lines={pace} height={130} />}
      {!loss && <p className="text-ink-3 text-xs">No rank reports a loss.</p>}
      {!norm && <p className="text-ink-3 text-xs">No rank reports its gradient norm.</p>}
      <Found marked={marked} />
    </div>
  );
}

/** The marks of the charts as a list: kind, entity, step, and a link to the incident. */
function Found({ marked }: { marked: MarkedFinding[] }) {
  if (marked.length === 0) return <p className="text-ink-3 text-xs">No findings at these steps.</p>;
  return (
    <section aria-label="Findings at these steps">
      <p className="pb-1 text-ink-3 text-xs">{plural(marked.length, "finding")} at these steps, marked ▼</p>
      <ul className="flex flex-col gap-0.5 text-sm">
        {marked.map(({ finding, step }) => {
          const look = statusStyleOf(severity, finding.severity);
          return (
            <li key={finding.id} className="flex flex-wrap items-center gap-x-2.5">
              <Glyph name={look.glyph} tone={look.tone} size={10} />
              <span className="num w-20 text-ink-3 text-xs">step {step}</span>
              {finding.incident ? (
                <Link
                  to="/incidents/$id"
                  params={{ id: finding.incident }}
                  className="font-medium text-accent hover:underline"
                >
                  {humanize(finding.kind)}
                </Link>
              ) : (
                <span className="font-medium">{humanize(finding.kind)}</span>
              )}
              <span className="num text-ink-2">{entityText(finding.entity)}</span>
              {!finding.active && <span className="text-ink-3 text-xs">cleared</span>}
            </li>
          );
        })}
      </ul>
    </section>
  );
}
