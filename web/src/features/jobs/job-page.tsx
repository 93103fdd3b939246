/** One job: its ranks, step time, protection, failures, and recoveries. */
import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import type { Job } from "@/api/types";
import { progressOf } from "@/features/overview/jobs-strip";
import { DelayPanel } from "@/features/run-analysis/delay-panel";
import { DetectorStatusPanel } from "@/features/run-analysis/detector-status-panel";
import { ProgressPanel } from "@/features/run-analysis/progress-panel";
import { ProgressTable } from "@/features/run-analysis/progress-table";
import { AdvicePanel } from "@/features/run-analysis/recommendations";
import { SignalCharts } from "@/features/run-analysis/signal-charts";
import { SignalMap } from "@/features/run-analysis/signal-map";
import { cx } from "@/lib/cx";
import { integer, percent, plural, shapeOf } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { job as looks, statusStyleOf } from "@/lib/status-styles";
import { Age } from "@/ui/age";
import { CopyMenu, curl } from "@/ui/copy";
import { Stat } from "@/ui/facts";
import { ErrorNotice, StaleStrip } from "@/ui/notice";
import { Page } from "@/ui/page";
import { Progress } from "@/ui/progress";
import { Segmented } from "@/ui/segmented";
import { SkeletonRows } from "@/ui/skeleton";
import { StatePill } from "@/ui/state-pill";
import { JobCheckpoints } from "./job-checkpoints";
import { JobHistory } from "./job-history";
import { JobProtection } from "./job-protection";
import { JobRanks } from "./job-ranks";
import { JobRecoveries } from "./job-recoveries";
import { JobRequests } from "./job-requests";
import { JobSteps } from "./job-steps";
import { jobQuery } from "./queries";
import { RankDetail } from "./rank-detail";
import type { JobTab } from "./search";

const route = getRouteApi("/shell/jobs/$id");
const tabs: { value: JobTab; label: string; title: string }[] = [
  { value: "overview", label: "Overview", title: "Step time, protection, recoveries, and detectors" },
  { value: "progress", label: "Progress", title: "The current step and collectives of every rank" },
  { value: "signals", label: "Signals", title: "Signals of ranks over steps, compared with peers" },
  { value: "transfers", label: "Transfers", title: "Transfer times between ranks" },
  { value: "checkpoints", label: "Checkpoints", title: "Steps on disk: state, size, and durability" },
];

export function JobPage() {
  const { id } = route.useParams();
  const { rank, tab = "overview" } = route.useSearch();
  const navigate = route.useNavigate();
  const query = useQuery({ ...jobQuery(id), refetchInterval: usePolling(8_000, 4_000) });
  const job = query.data;
  return (
    <Page
      title={job?.name ?? id}
      crumb={
        <Link to="/jobs" className="hover:underline">
          Jobs
        </Link>
      }
      mark={job && <StatePill look={statusStyleOf(looks, job.state)} />}
      meta={job && <Meta job={job} />}
      actions={
        <CopyMenu
          commands={[
            curl(`/v1/jobs/${encodeURIComponent(id)}`),
            ...(job ? [{ label: "command line", text: job.command }] : []),
          ]}
        />
      }
    >
      {query.isError &&
        (job ? (
          <StaleStrip
            since={query.dataUpdatedAt / 1000}
            error={query.error}
            onRetry={() => void query.refetch()}
          />
        ) : (
          <ErrorNotice error={query.error} onRetry={() => void query.refetch()} />
        ))}
      {query.isPending && <SkeletonRows rows={8} />}
      {job && (
        <>
          <Numbers job={job} />
          <Segmented
            label="View"
            value={tab}
            onChange={(next) =>
              void navigate({ search: (old) => ({ ...old, tab: next }), replace: true, resetScroll: false })
            }
            options={tabs}
            wrap
          />
          {tab === "overview" && <Overview job={job} rank={rank} />}
          {tab === "progress" && (
            <ProgressPanel job={job}>
              {(progress, rows) => <ProgressTable progress={progress} rows={rows} />}
            </ProgressPanel>
          )}
          {tab === "signals" && (
            <div
              className={cx(
                "grid items-start gap-4",
                rank !== undefined && "xl:grid-cols-[minmax(0,1fr)_22rem]",
              )}
            >
              <div className="flex min-w-0 flex-col gap-4">
                <SignalMap job={job} />
                <SignalCharts job={job} />
              </div>
              {rank !== undefined && <RankDetail job={job} rank={rank} />}
            </div>
          )}
          {tab === "transfers" && <DelayPanel job={job} />}
          {tab === "checkpoints" && <JobCheckpoints job={job} />}
        </>
      )}
    </Page>
  );
}

function Overview({ job, rank }: { job: Job; rank: number | undefined }) {
  return (
    <>
      {job.finished_at === null && <ProgressPanel job={job} />}
      <div className="grid items-start gap-4 xl:grid-cols-[minmax(0,1fr)_22rem]">
        <div className="flex min-w-0 flex-col gap-4">
          <JobRanks job={job} />
          <JobSteps job={job} />
        </div>
        <div className="flex min-w-0 flex-col gap-4">
          {rank !== undefined && <RankDetail job={job} rank={rank} />}
          <DetectorStatusPanel job={job} />
          <AdvicePanel job={job} />
          <JobProtection job={job} />
          <JobRequests job={job} />
        </div>
      </div>
      <JobRecoveries job={job} />
      <JobHistory job={job} />
    </>
  );
}

function Meta({ job }: { job: Job }) {
  return (
    <>
      {job.id !== job.name && <span className="font-mono text-ink-3 text-xs">{job.id}</span>}
      <span>
        started <Age at={job.started_at} />
      </span>
      <span>
        {job.finished_at === null ? "last report " : "finished "}
        <Age at={job.finished_at ?? job.last_seen_at} />
      </span>
      {job.open_incidents > 0 && (
        <Link
          to="/incidents"
          search={{ job: job.id }}
          className="font-medium text-quarantined hover:underline"
        >
          {plural(job.open_incidents, "open incident")}
        </Link>
      )}
    </>
  );
}

function Numbers({ job }: { job: Job }) {
  const { topology } = job;
  return (
    <section aria-label="Progress" className="rounded-lg border border-line bg-surface px-5 py-4">
      <div className="flex flex-wrap items-end gap-x-12 gap-y-4">
        <Stat
          value={integer(job.last_step)}
          name="last committed step"
          note={job.steps_total === null ? undefined : `of ${integer(job.steps_total)}`}
        />
        <Stat value={percent(job.ettr)} name="ETTR" term="ETTR" />
        <Stat value={integer(job.recoveries)} name={job.recoveries === 1 ? "recovery" : "recoveries"} />
        <Stat value={integer(job.generation)} name="generation" />
        <Stat
          value={shapeOf(topology)}
          name={
            topology.pipeline_depths
              ? "stages of each pipeline"
              : `data × pipeline${topology.tp > 1 ? " × tensor" : ""}`
          }
          note={plural(topology.world_size, "rank")}
        />
      </div>
      <Progress value={progressOf(job)} label="Steps committed" className="mt-4" />
    </section>
  );
}
