/** The migration requests of the job and their results; hidden without requests. */
import { useQuery } from "@tanstack/react-query";
import type { JobRequest } from "@/api/types";
import { duration, humanize, plural } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { Age } from "@/ui/age";
import { Panel } from "@/ui/panel";
import { jobRequestsQuery } from "./queries";

export function JobRequests({ id }: { id: string }) {
  const { data } = useQuery({ ...jobRequestsQuery(id), refetchInterval: usePolling(8_000, 4_000) });
  if (!data || data.length === 0) return null;
  return (
    <Panel title="Migrations" term="migration" about="newest first">
      <ul className="flex flex-col gap-2 px-4 pb-3">
        {data.map((one) => (
          <li key={one.id} className="text-sm">
            <p className="text-ink">
              {humanize(one.state)}: {one.node ? `all ranks of ${one.node}` : `rank ${one.rank}`}
              {one.target && ` to ${one.target}`}{" "}
              <span className="text-ink-3 text-xs">
                <Age at={one.updated_at} />
              </span>
            </p>
            <p className="text-ink-2 text-xs">{outcome(one)}</p>
          </li>
        ))}
      </ul>
    </Panel>
  );
}

function outcome(one: JobRequest): string {
  const request = `${one.actor}: ${one.reason}`;
  if (one.state === "pending") return `${request}. The coordinator has not answered yet.`;
  const lost = one.steps_lost === null ? "" : `, ${plural(one.steps_lost, "step")} repeated`;
  const paused = one.seconds === null ? "" : ` Training paused for ${duration(one.seconds)}${lost}.`;
  return `${one.detail}.${paused} Requested by ${request}`;
}
