import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import type { Job } from "@/api/types";
import { RankMini } from "@/charts/rank-grid";
import { progressOf } from "@/features/overview/jobs-strip";
import { integer, percent } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { job as looks, statusStyleOf } from "@/lib/status-styles";
import { Age } from "@/ui/age";
import { CopyMenu, curl } from "@/ui/copy";
import { Empty } from "@/ui/notice";
import { Page } from "@/ui/page";
import { Panel } from "@/ui/panel";
import { Progress } from "@/ui/progress";
import { QueryView } from "@/ui/query-view";
import { SkeletonRows } from "@/ui/skeleton";
import { StatePill } from "@/ui/state-pill";
import { type Column, columnsFor, DataTable } from "@/ui/table";
import { jobsQuery } from "./queries";

const column = columnsFor<Job>();

const columns: Column<Job>[] = column.columns([
  column.accessor("name", {
    header: "Job",
    cell: ({ row }) => (
      <Link
        to="/jobs/$id"
        params={{ id: row.original.id }}
        search={{}}
        className="font-medium text-ink hover:underline"
        tabIndex={-1}
      >
        {row.original.name}
      </Link>
    ),
  }),
  column.accessor("state", {
    header: "State",
    cell: ({ row }) => <StatePill look={statusStyleOf(looks, row.original.state)} quiet />,
  }),
  column.accessor((job) => job.topology.world_size, {
    id: "ranks",
    header: "Ranks",
    cell: ({ row }) => <RankMini ranks={row.original.topology.ranks} size={row.original.topology} />,
  }),
  column.accessor((job) => progressOf(job) ?? 0, {
    id: "progress",
    header: "Progress",
    cell: ({ row }) => (
      <span className="flex items-center gap-3">
        <Progress
          value={progressOf(row.original)}
          label={`Progress of ${row.original.name}`}
          className="w-40"
        />
        <span className="num text-ink-2 text-xs">
          {integer(row.original.last_step)}
          {row.original.steps_total !== null && ` / ${integer(row.original.steps_total)}`}
        </span>
      </span>
    ),
  }),
  column.accessor((job) => job.ettr ?? -1, {
    id: "effective",
    header: "ETTR",
    cell: ({ row }) => percent(row.original.ettr),
  }),
  column.accessor("recoveries", { header: "Recoveries" }),
  column.accessor("generation", { header: "Generation" }),
  column.accessor("started_at", {
    id: "started",
    header: "Started",
    cell: ({ row }) => (
      <span className="text-ink-2">
        <Age at={row.original.started_at} />
      </span>
    ),
  }),
  column.accessor("last_seen_at", {
    id: "seen",
    header: "Last report",
    cell: ({ row }) => (
      <span className="text-ink-2">
        <Age at={row.original.last_seen_at} />
      </span>
    ),
  }),
]) as Column<Job>[];

export function JobsPage() {
  const query = useQuery({ ...jobsQuery(), refetchInterval: usePolling(15_000) });
  const navigate = useNavigate();
  return (
    <Page title="Jobs" actions={<CopyMenu commands={[curl("/v1/jobs")]} />}>
      <Panel flush>
        <QueryView query={query} loading={<SkeletonRows className="p-4" />}>
          {(page) =>
            page.items.length === 0 ? (
              <div className="p-4">
                <Empty title="No jobs.">
                  Add Mainstay to the training script, then run{" "}
                  <code className="font-mono text-xs">mainstay run --nproc-per-node 4 train.py</code>.
                </Empty>
              </div>
            ) : (
              <DataTable
                label="Jobs"
                data={page.items}
                columns={columns}
                rowId={(job) => job.id}
                right={["effective", "recoveries", "generation"]}
                onOpen={(job) => void navigate({ to: "/jobs/$id", params: { id: job.id }, search: {} })}
              />
            )
          }
        </QueryView>
      </Panel>
    </Page>
  );
}
