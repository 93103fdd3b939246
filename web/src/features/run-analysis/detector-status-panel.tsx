import { useQuery } from "@tanstack/react-query";
import type { Job } from "@/api/types";
import { namedNumber, signalLabel } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { statusStyleOf } from "@/lib/status-styles";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { SkeletonRows } from "@/ui/skeleton";
import { StatePill } from "@/ui/state-pill";
import { detectorStates, headline, nameOf, reasonOf, sortedDetectors } from "./detector-status-model";
import { detectorsQuery } from "./queries";
import type { DetectorStatus } from "./types";

/** The detectors of the job and their status. */
export function DetectorStatusPanel({ job }: { job: Job }) {
  const query = useQuery({ ...detectorsQuery(job.id), refetchInterval: usePolling(10_000, 5_000) });
  const detectors = query.data?.detectors ?? [];
  return (
    <Panel
      title="Detector status"
      term="detector status"
      about={detectors.length > 0 ? headline(detectors) : undefined}
      flush
    >
      <QueryView query={query} loading={<SkeletonRows className="px-4 pb-4" />}>
        {({ detectors }) =>
          detectors.length === 0 ? (
            <div className="px-4 pb-3">
              <Empty title="No detectors.">
                {job.finished_at === null
                  ? "Detectors start with the first signals of the ranks. Until then, a missing finding is not evidence of health."
                  : "The job has ended."}
              </Empty>
            </div>
          ) : (
            <ul>
              {sortedDetectors(detectors).map((detector) => (
                <Account key={detector.name} detector={detector} />
              ))}
            </ul>
          )
        }
      </QueryView>
    </Panel>
  );
}

function Account({ detector }: { detector: DetectorStatus }) {
  const numbers = Object.entries(detector.numbers);
  return (
    <li className="border-line border-t px-4 py-2 text-sm">
      <div className="flex flex-wrap items-center justify-between gap-x-3">
        <span className="font-medium">{nameOf(detector)}</span>
        <StatePill look={statusStyleOf(detectorStates, detector.state)} quiet />
      </div>
      {(detector.state !== "active" || detector.reason) && (
        <p className="text-ink-2 text-xs leading-5">{reasonOf(detector)}</p>
      )}
      {numbers.length > 0 && (
        <p className="num flex flex-wrap gap-x-3 text-ink-3 text-xs leading-5">
          {numbers.map(([name, value]) => (
            <span key={name}>
              {signalLabel(name).toLowerCase()}{" "}
              <b className="font-medium text-ink-2">{namedNumber(name, value)}</b>
            </span>
          ))}
        </p>
      )}
    </li>
  );
}
