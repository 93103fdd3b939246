import { useQuery } from "@tanstack/react-query";
import type { FleetEvent, Job } from "@/api/types";
import { WatchLine } from "@/charts/watch-line";
import { EventHistory } from "@/features/events/event-table";
import { recentIncidentsQuery } from "@/features/incidents/queries";
import { usePolling } from "@/lib/live";
import { useNow } from "@/lib/time";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { SkeletonRows } from "@/ui/skeleton";
import { jobEventsQuery } from "./queries";

/** Each generation starts with a tick on the time line. */
function generations(events: readonly FleetEvent[]): { at: number; label: string }[] {
  return events
    .filter((event) => event.kind === "recovery_completed")
    .map((event) => ({ at: event.time, label: `generation ${event.generation ?? "?"}` }));
}

export function JobHistory({ job }: { job: Job }) {
  const polling = usePolling(15_000);
  const events = useQuery({ ...jobEventsQuery(job.id), refetchInterval: polling });
  const incidents = useQuery({ ...recentIncidentsQuery({ job: job.id }), refetchInterval: polling });
  const now = useNow();
  return (
    <Panel
      title="Failures and recoveries"
      about="since the start of the job; each bar is an incident until its recovery"
      flush
    >
      <div className="px-5 pt-2 pb-3">
        <WatchLine
          incidents={incidents.data ?? []}
          start={job.started_at}
          end={Math.max(job.finished_at ?? now, job.started_at + 60)}
          label={`Incidents of ${job.name}`}
          points={generations(events.data?.items ?? [])}
        />
      </div>
      <QueryView query={events} loading={<SkeletonRows className="px-4 pb-4" />}>
        {(page) =>
          page.items.length === 0 ? (
            <div className="px-4 pb-3">
              <Empty title="No failures or recoveries yet." />
            </div>
          ) : (
            <EventHistory events={page.items} label={`Events of ${job.name}`} />
          )
        }
      </QueryView>
    </Panel>
  );
}
