import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { useMemo } from "react";
import type { Job } from "@/api/types";
import { useDark } from "@/app/theme";
import { scaleGradient } from "@/charts/color";
import { RankGrid } from "@/charts/rank-grid";
import { colorRange } from "@/charts/rank-layout";
import { bytes, duration } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { lookOf, rank as rankLooks } from "@/lib/states";
import { Button } from "@/ui/button";
import { Facts } from "@/ui/facts";
import { StaleStrip } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { Segmented } from "@/ui/segmented";
import { StatePill } from "@/ui/state-pill";
import { rankFacts, rankValues } from "./job-model";
import { stepsQuery } from "./queries";
import type { RankMetric } from "./search";

const route = getRouteApi("/shell/jobs/$id");
const ratio = (value: number) => `${value.toFixed(2)} ×`;

const metrics: { value: RankMetric; label: string; title: string }[] = [
  { value: "step", label: "Step", title: "Wall time of the newest step, commit to commit" },
  { value: "compute", label: "Compute", title: "The rank's own compute in the newest step" },
  {
    value: "peers",
    label: "Against peers",
    title: "Compute over the median of the same stage's other ranks",
  },
];

/** The topology, coloured; a rank that is chosen opens beside it and in the chart below. */
export function JobRanks({ job }: { job: Job }) {
  const { by = "step", rank } = route.useSearch();
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
        <Segmented label="Colour by" value={by} onChange={(value) => set({ by: value })} options={metrics} />
      }
    >
      {steps.isError && <StaleStrip since={steps.dataUpdatedAt / 1000} error={steps.error} />}
      <div className="flex flex-wrap items-start gap-x-6 gap-y-4">
        <div className="min-w-0 flex-1">
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
        </div>
        {rank !== undefined && <RankDetail job={job} rank={rank} onClose={() => set({ rank: undefined })} />}
      </div>
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

function RankDetail({ job, rank, onClose }: { job: Job; rank: number; onClose: () => void }) {
  const steps = useQuery(stepsQuery(job.id));
  const place = job.topology.ranks.find((r) => r.rank === rank);
  const facts = rankFacts(job, steps.data, rank);
  return (
    <aside aria-label={`Rank ${rank}`} className="w-72 border-line border-l pl-5">
      <div className="mb-2 flex items-center justify-between">
        <h3 className="flex items-center gap-2 font-semibold">
          Rank {rank} {place && <StatePill look={lookOf(rankLooks, place.state)} quiet />}
        </h3>
        <Button kind="ghost" icon="close" aria-label="Close rank" onClick={onClose} />
      </div>
      {!place ? (
        <p className="text-ink-2 text-sm">This generation has no such rank.</p>
      ) : (
        <Facts
          facts={[
            {
              name: "Node",
              value: (
                <Link
                  to="/nodes/$name"
                  params={{ name: place.node }}
                  search={{}}
                  className="font-medium text-accent hover:underline"
                >
                  {place.node}
                </Link>
              ),
            },
            { name: "Device", value: place.device ?? "host" },
            { name: "Process", value: place.pid ?? "–" },
            {
              name: "Place",
              value: `replica ${place.dp}, stage ${place.pp}${job.topology.tp > 1 ? `, shard ${place.tp}` : ""}`,
            },
            {
              name: "Step",
              value: (
                <>
                  {duration(facts?.step)} <Muted>typically {duration(facts?.typicalStep)}</Muted>
                </>
              ),
            },
            {
              name: "Compute",
              value: (
                <>
                  {duration(facts?.compute)} <Muted>typically {duration(facts?.typicalCompute)}</Muted>
                </>
              ),
            },
            {
              name: "Peers",
              value: facts?.vsPeers == null ? "no peers to compare" : `${ratio(facts.vsPeers)} their median`,
            },
            { name: "State", value: bytes(job.protection.state_bytes[rank]) },
          ]}
        />
      )}
    </aside>
  );
}

function Muted({ children }: { children: React.ReactNode }) {
  return <span className="text-ink-3 text-xs">{children}</span>;
}
