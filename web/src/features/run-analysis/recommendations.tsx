import { useQuery } from "@tanstack/react-query";
import type { Finding, Job } from "@/api/types";
import { humanize, namedNumber, readable, signalLabel } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { Age } from "@/ui/age";
import { Panel } from "@/ui/panel";
import { recommendationsIn } from "./findings-model";
import { heldFindingsQuery } from "./queries";

/** The active recommendations of the job; hidden without any. */
export function AdvicePanel({ job }: { job: Job }) {
  const query = useQuery({ ...heldFindingsQuery(job.id), refetchInterval: usePolling(15_000, 8_000) });
  const advice = recommendationsIn(query.data ?? []);
  if (advice.length === 0) return null;
  return (
    <Panel
      title="Recommendations"
      term="recommendation"
      about="layout changes that could save time; not faults"
      flush
    >
      <ul>
        {advice.map((finding) => (
          <Recommendations key={finding.id} finding={finding} />
        ))}
      </ul>
    </Panel>
  );
}

function Recommendations({ finding }: { finding: Finding }) {
  const numbers = Object.entries(finding.evidence.numbers);
  return (
    <li className="border-line border-t px-4 py-2.5 text-sm">
      <div className="flex flex-wrap items-baseline justify-between gap-x-3">
        <h3 className="font-medium">{humanize(finding.kind)}</h3>
        <span className="text-ink-3 text-xs">
          since <Age at={finding.time} suffix="" />
        </span>
      </div>
      <p className="text-ink-2">{readable(finding.evidence.summary)}</p>
      {numbers.length > 0 && (
        <p className="num mt-0.5 flex flex-wrap gap-x-3 text-ink-3 text-xs">
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
