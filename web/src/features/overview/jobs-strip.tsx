import { Link } from "@tanstack/react-router";
import type { Job } from "@/api/types";
import { RankMini } from "@/charts/rank-grid";
import { integer, percent, plural, shapeOf } from "@/lib/format";
import { job as jobLooks, statusStyleOf } from "@/lib/status-styles";
import { Age } from "@/ui/age";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { Progress } from "@/ui/progress";
import { StatePill } from "@/ui/state-pill";
import { Term } from "@/ui/term";

export const progressOf = (job: Job) =>
  job.steps_total && job.last_step !== null ? job.last_step / job.steps_total : null;

export function JobsStrip({ jobs }: { jobs: Job[] }) {
  return (
    <Panel
      title="Jobs"
      flush
      aside={
        <Link to="/jobs" className="text-accent text-sm hover:underline">
          All jobs
        </Link>
      }
    >
      {jobs.length === 0 ? (
        <div className="px-4 pb-3">
          <Empty title="No jobs.">
            Start one with <code className="font-mono text-xs">mainstay run --nproc-per-node 4 train.py</code>
            .
          </Empty>
        </div>
      ) : (
        <ul>
          {jobs.map((job) => (
            <Row key={job.id} job={job} />
          ))}
        </ul>
      )}
    </Panel>
  );
}

function Row({ job }: { job: Job }) {
  const { topology } = job;
  return (
    <li className="grid items-center sm:grid-cols-[minmax(0,1fr)_5.5rem_5.5rem] gap-x-5 gap-y-1 border-line border-t px-4 py-2.5 text-sm">
      <div className="min-w-0">
        <div className="flex flex-wrap items-center gap-x-2.5">
          <Link
            to="/jobs/$id"
            params={{ id: job.id }}
            search={{}}
            className="truncate font-medium text-ink hover:underline"
          >
            {job.name}
          </Link>
          <StatePill look={statusStyleOf(jobLooks, job.state)} quiet />
          <span className="num ml-auto text-ink-3 text-xs">
            step {integer(job.last_step)}
            {job.steps_total !== null && ` of ${integer(job.steps_total)}`}
          </span>
        </div>
        <Progress value={progressOf(job)} label={`Progress of ${job.name}`} className="mt-1.5" />
        <p className="mt-1 text-ink-3 text-xs">
          {shapeOf(topology)} ranks · generation {job.generation} ·{" "}
          {plural(job.recoveries, "recovery", "recoveries")} · last report <Age at={job.last_seen_at} />
        </p>
      </div>
      <span className="justify-self-center max-sm:hidden">
        <RankMini ranks={topology.ranks} size={topology} />
      </span>
      <div className="sm:text-right max-sm:flex max-sm:items-baseline max-sm:gap-1.5">
        <div className="num font-semibold text-base text-ink">{percent(job.ettr)}</div>
        <div className="text-ink-3 text-xs">
          <Term name="ETTR" />
        </div>
      </div>
    </li>
  );
}
