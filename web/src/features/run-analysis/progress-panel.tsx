import { useQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";
import type { Job } from "@/api/types";
import { cx } from "@/lib/cx";
import { duration } from "@/lib/format";
import { statusStyleOf } from "@/lib/status-styles";
import { useNow } from "@/lib/time";
import { Age } from "@/ui/age";
import { Glyph } from "@/ui/glyph";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { Skeleton } from "@/ui/skeleton";
import { StatePill } from "@/ui/state-pill";
import {
  kindsInUse,
  laggardText,
  progressLooks,
  type RankRow,
  rankRows,
  shareOfLimit,
  stateSentence,
} from "./progress-model";
import { progressQuery } from "./queries";
import type { JobProgress } from "./types";

/** Ranks report once a second; an older response does not show the current state. */
const OLD_SECONDS = 15;

interface Props {
  job: Job;
  /** The content below the state, such as the ranks. */
  children?: (progress: JobProgress, rows: RankRow[]) => ReactNode;
  aside?: ReactNode;
}

/** The progress of the job: time without a collective against the hang timeout, and lagging ranks. */
export function ProgressPanel({ job, children, aside }: Props) {
  // A response about 1,000 ranks has 300 kB.
  const polling = job.finished_at !== null ? false : job.topology.world_size > 1024 ? 5_000 : 2_000;
  const query = useQuery({ ...progressQuery(job.id), refetchInterval: polling });
  return (
    <Panel title="Live progress" about="collectives of all ranks, reported every second" aside={aside}>
      <QueryView query={query} loading={<Skeleton className="h-10" />}>
        {(progress) =>
          progress.ranks.length === 0 && progress.state === "unknown" ? (
            <Empty title={job.finished_at === null ? "No progress reports." : "The job has ended."}>
              {job.finished_at === null &&
                "Under mainstay run, a script with the SDK reports progress automatically. A job under torchrun reports only its steps."}
            </Empty>
          ) : (
            <Body job={job} progress={progress}>
              {children}
            </Body>
          )
        }
      </QueryView>
    </Panel>
  );
}

function Body({ job, progress, children }: Pick<Props, "job" | "children"> & { progress: JobProgress }) {
  const now = useNow();
  const rows = rankRows(progress, job.topology);
  const late = now - progress.time > OLD_SECONDS;
  const ended = job.finished_at !== null;
  const lagging = laggardText(rows, kindsInUse(progress));
  return (
    <div className="flex flex-col gap-3">
      <div className="flex flex-wrap items-center gap-x-4 gap-y-2 text-sm">
        <StatePill look={statusStyleOf(progressLooks, late || ended ? "unknown" : progress.state)} />
        <p className="min-w-0 flex-1 basis-72 text-ink-2">
          {ended ? "The job has ended. These are the last reports of its ranks." : stateSentence(progress)}
        </p>
        {!ended && <Limit progress={progress} />}
      </div>
      {late && !ended && (
        <p className="flex items-center gap-2 text-suspect text-xs">
          <Glyph name="half" size={11} />
          <span>
            Last report <Age at={progress.time} />. Its current state is unknown.
          </span>
        </p>
      )}
      {lagging && (
        <p className="flex items-start gap-2 rounded-md bg-suspect-soft px-3 py-2 text-ink text-sm">
          <span className="mt-1">
            <Glyph name="triangle" tone="suspect" />
          </span>
          {lagging}
        </p>
      )}
      {children?.(progress, rows)}
    </div>
  );
}

/** The elapsed part of the hang timeout. */
function Limit({ progress }: { progress: JobProgress }) {
  const share = shareOfLimit(progress);
  if (share === null || progress.state === "masked") return null;
  const text = `${duration(progress.quiet_seconds)} of ${duration(progress.limit_seconds)}`;
  return (
    <span className="flex items-center gap-2">
      <span
        role="img"
        aria-label={`${text} of the hang timeout without a collective`}
        className="relative h-1.5 w-32 overflow-hidden rounded-full bg-line-strong/60"
      >
        <span
          className={cx(
            "absolute inset-y-0 left-0 rounded-full",
            share >= 1 ? "bg-quarantined" : share >= 0.5 ? "bg-suspect" : "bg-accent",
          )}
          style={{ width: `${share * 100}%` }}
        />
      </span>
      <span className="num whitespace-nowrap text-ink-3 text-xs">{text}</span>
    </span>
  );
}
