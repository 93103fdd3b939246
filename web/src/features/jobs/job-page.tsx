/** One job: its ranks as the topology they form, its pace, what broke it and what brought it back. */
import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import type { Job } from "@/api/types";
import { AdvicePanel } from "@/features/judged/advice";
import { DelayPanel } from "@/features/judged/delay-panel";
import { JudgementPanel } from "@/features/judged/judgement-panel";
import { ProgressPanel } from "@/features/judged/progress-panel";
import { ProgressTable } from "@/features/judged/progress-table";
import { SignalCharts } from "@/features/judged/signal-charts";
import { SignalMap } from "@/features/judged/signal-map";
import { progressOf } from "@/features/overview/jobs-strip";
import { cx } from "@/lib/cx";
import { integer, percent, plural, shapeOf } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { lookOf, job as looks } from "@/lib/states";
import { Age } from "@/ui/age";
import { CopyMenu, curl } from "@/ui/copy";
import { Stat } from "@/ui/facts";
import { ErrorNotice, StaleStrip } from "@/ui/notice";
import { Page } from "@/ui/page";
import { Progress } from "@/ui/progress";
import { Segmented } from "@/ui/segmented";
import { SkeletonRows } from "@/ui/skeleton";
import { StatePill } from "@/ui/state-pill";
import { JobHistory } from "./job-history";
import { JobMigrations } from "./job-migrations";
import { JobProtection } from "./job-protection";
import { JobRanks } from "./job-ranks";
import { JobRecoveries } from "./job-recoveries";
import { JobSteps } from "./job-steps";
import { jobQuery } from "./queries";
import { RankDetail } from "./rank-detail";
import type { JobTab } from "./search";

const route = getRouteApi("/shell/jobs/$id");
const tabs: { value: JobTab; label: string; title: string }[] = [
  { value: "overview", label: "Overview", title: "Pace, protection, recoveries, and who judges the job" },
  { value: "progress", label: "Progress", title: "Every rank now: step, call, collectives" },
  { value: "signals", label: "Signals", title: "Any signal of the ranks over steps, against their peers" },
  { value: "transfers", label: "Transfers", title: "How long every rank's sending takes" },
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
      mark={job && <StatePill look={lookOf(looks, job.state)} />}
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
          <div className="-my-1 overflow-x-auto py-1">
            <Segmented
              label="View"
              value={tab}
              onChange={(next) =>
                void navigate({ search: (old) => ({ ...old, tab: next }), replace: true, resetScroll: false })
              }
              options={tabs}
            />
          </div>
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
          <JudgementPanel job={job} />
          <AdvicePanel job={job} />
          <JobProtection job={job} />
          <JobMigrations id={job.id} />
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
        {job.finished_at === null ? "heard " : "finished "}
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
        <Stat value={percent(job.effective_ratio)} name="effective training time" />
        <Stat value={integer(job.recoveries)} name={job.recoveries === 1 ? "recovery" : "recoveries"} />
        <Stat value={integer(job.generation)} name="generation" />
        <Stat
          value={shapeOf(topology)}
          name={
            topology.stages
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
