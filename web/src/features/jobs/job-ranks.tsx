import { useQuery } from "@tanstack/react-query";
import { getRouteApi } from "@tanstack/react-router";
import { useMemo } from "react";
import type { Job } from "@/api/types";
import { useDark } from "@/app/theme";
import { scaleGradient } from "@/charts/color";
import { RankGrid } from "@/charts/rank-grid";
import { colorRange } from "@/charts/rank-layout";
import { duration } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { StaleStrip } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { Segmented } from "@/ui/segmented";
import { rankValues } from "./job-model";
import { stepsQuery } from "./queries";
import { ratio } from "./rank-detail";
import type { RankMetric } from "./search";

const route = getRouteApi("/shell/jobs/$id");
const metrics: { value: RankMetric; label: string; title: string }[] = [
  { value: "compute", label: "Compute", title: "Compute time of the rank in the newest step" },
  { value: "step", label: "Step", title: "Wall time of the newest step, from commit to commit" },
  {
    value: "peers",
    label: "Relative to peers",
    title: "Compute time divided by the median of the other ranks of its stage",
  },
];

/** The topology, colored by a metric; a selected rank opens beside it and in the chart below. */
export function JobRanks({ job }: { job: Job }) {
  const { by = "compute", rank } = route.useSearch();
  const navigate = route.useNavigate();
  const steps = useQuery({ ...stepsQuery(job.id), refetchInterval: usePolling(4_000, 4_000) });
  const values = useMemo(() => rankValues(job, steps.data, by), [job, steps.data, by]);
  const range = useMemo(() => colorRange([...values.values()]), [values]);
  const format = by === "peers" ? ratio : duration;
  const set = (change: { by?: RankMetric; rank?: number }) =>
    void navigate({ search: (old) => ({ ...old, ...change }), replace: true });
  return (
    <Panel
      title="Ranks"
      about={metrics.find((m) => m.value === by)?.title}
      aside={
        <Segmented label="Color by" value={by} onChange={(value) => set({ by: value })} options={metrics} />
      }
    >
      {steps.isError && <StaleStrip since={steps.dataUpdatedAt / 1000} error={steps.error} />}
      <RankGrid
        ranks={job.topology.ranks}
        size={job.topology}
        values={values}
        range={range}
        format={format}
        selected={rank ?? null}
        onSelect={(next) => set({ rank: next ?? undefined })}
      />
      {range && <Scale range={range} format={format} />}
    </Panel>
  );
}

function Scale({ range, format }: { range: [number, number]; format: (v: number) => string }) {
  const dark = useDark();
  return (
    <div className="num mt-2.5 flex items-center gap-2 text-ink-3 text-xs">
      <span>{format(range[0])}</span>
      <span
        aria-hidden="true"
        className="h-2 w-36 rounded-[3px]"
        style={{ background: scaleGradient(dark) }}
      />
      <span>{format(range[1])}</span>
    </div>
  );
}
