import { useQuery } from "@tanstack/react-query";
import { getRouteApi } from "@tanstack/react-router";
import { useMemo } from "react";
import type { Job, Steps } from "@/api/types";
import { TimeChart } from "@/charts/time-chart";
import { marksOf, onAxis } from "@/features/run-analysis/findings-model";
import { findingsQuery } from "@/features/run-analysis/queries";
import { usePolling } from "@/lib/live";
import { Button } from "@/ui/button";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { Skeleton } from "@/ui/skeleton";
import { rankLines } from "./job-model";
import { stepsQuery } from "./queries";

const route = getRouteApi("/shell/jobs/$id");

/** Step time by step; a recovery is a spike. */
export function JobSteps({ job }: { job: Job }) {
  const { rank, from, to } = route.useSearch();
  const navigate = route.useNavigate();
  const polling = usePolling(4_000, 4_000);
  const query = useQuery({
    ...stepsQuery(job.id, from, to),
    refetchInterval: to === undefined ? polling : false,
  });
  const zoomed = from !== undefined || to !== undefined;
  const zoom = (a?: number, b?: number) =>
    void navigate({ search: (old) => ({ ...old, from: a, to: b }), replace: true });
  return (
    <Panel
      title="Step time"
      about={zoomed ? `steps ${from ?? 0} to ${to ?? "now"}` : "drag to zoom in"}
      aside={
        zoomed && (
          <Button icon="reset" onClick={() => zoom()}>
            All steps
          </Button>
        )
      }
    >
      <QueryView query={query} loading={<Skeleton className="h-48" />}>
        {(steps) =>
          steps.steps.length === 0 ? (
            <Empty title="No committed steps yet.">
              The first report arrives with the first committed step.
            </Empty>
          ) : (
            <Charts
              job={job}
              steps={steps}
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
  steps: Steps;
  rank: number | undefined;
  onZoom: (from: number, to: number) => void;
}

function Charts({ job, steps, rank, onZoom }: ChartsProps) {
  const findings = useQuery({ ...findingsQuery(job.id), refetchInterval: usePolling(15_000, 8_000) });
  const marks = useMemo(() => marksOf(onAxis(findings.data ?? [], steps.steps)), [findings.data, steps]);
  const stepLines = useMemo(() => rankLines(steps, "step", rank), [steps, rank]);
  const computeLines = useMemo(() => rankLines(steps, "compute", rank), [steps, rank]);
  const loss = useMemo(() => [{ label: "loss", values: steps.loss }], [steps]);
  const common = { x: steps.steps, xIs: "step" as const, syncKey: "steps", onZoom, marks };
  return (
    <div className="flex flex-col gap-4">
      <TimeChart {...common} title="Step time" unit="s" lines={stepLines} height={170} />
      <TimeChart {...common} title="Compute time" unit="s" lines={computeLines} height={130} />
      {steps.loss.some((v) => v !== null) && (
        <TimeChart {...common} title="Loss" unit="1" lines={loss} height={110} />
      )}
    </div>
  );
}
