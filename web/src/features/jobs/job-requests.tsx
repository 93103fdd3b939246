/** What operators and Mainstay asked the job for, and the results. Hidden for a job that ended without requests. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import type { Job, JobRequest } from "@/api/types";
import { duration, humanize, plural } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { Age } from "@/ui/age";
import { Button } from "@/ui/button";
import { Panel } from "@/ui/panel";
import { JobRequestDialog } from "./job-request-dialog";
import { jobRequestsQuery } from "./queries";
import { subjectOf } from "./request-model";

export function JobRequests({ job }: { job: Job }) {
  const [open, setOpen] = useState(false);
  const { data } = useQuery({ ...jobRequestsQuery(job.id), refetchInterval: usePolling(8_000, 4_000) });
  const runs = job.finished_at === null;
  if (!runs && !data?.length) return null;
  return (
    <Panel
      title="Requests"
      term="request"
      about="newest first"
      aside={runs && <Button onClick={() => setOpen(true)}>New request</Button>}
    >
      {data?.length ? (
        <ul className="flex flex-col gap-2">
          {data.map((one) => (
            <li key={one.id} className="text-sm">
              <p className="text-ink">
                {humanize(one.state)}: {subjectOf(one)}{" "}
                <span className="text-ink-3 text-xs">
                  <Age at={one.updated_at} />
                </span>
              </p>
              <p className="text-ink-2 text-xs">{outcome(one)}</p>
            </li>
          ))}
        </ul>
      ) : (
        <p className="text-ink-3 text-sm">
          Move or restore ranks, continue without a node, change the shape, or save a checkpoint.
        </p>
      )}
      {open && <JobRequestDialog job={job} onClose={() => setOpen(false)} />}
    </Panel>
  );
}

function outcome(one: JobRequest): string {
  const request = `${one.actor}: ${one.reason}`;
  if (one.state === "pending") return `${request}. The coordinator has not answered yet.`;
  const lost = one.steps_lost === null ? "" : `, ${plural(one.steps_lost, "step")} repeated`;
  const paused = one.seconds ? ` Training paused for ${duration(one.seconds)}${lost}.` : "";
  return `${one.detail}.${paused} Requested by ${request}`;
}
