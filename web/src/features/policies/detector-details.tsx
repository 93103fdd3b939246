/** What a detector reports, what it found, its limits, and the form for its policy. */
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import type { Detector, Finding } from "@/api/types";
import { humanize, readable } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { Age } from "@/ui/age";
import { QueryView } from "@/ui/query-view";
import { DetectorPolicyForm } from "./detector-policy-form";
import { detectorFindingsQuery } from "./queries";

interface Props {
  detector: Detector;
  siteConfidence: number;
}

export function DetectorDetails({ detector, siteConfidence }: Props) {
  const { name, kinds, limits, policy } = detector;
  return (
    <div className="grid gap-x-8 gap-y-4 px-4 pt-1 pb-4 lg:grid-cols-2">
      <DetectorPolicyForm key={policy.version} detector={detector} siteConfidence={siteConfidence} />
      <div className="flex min-w-0 flex-col gap-4 text-sm">
        <section>
          <h3 className="font-medium">Finding kinds</h3>
          <p className="text-ink-2">{kinds.map(humanize).join(", ")}</p>
        </section>
        <ActiveFindings detector={name} />
        <details>
          <summary className="w-max cursor-pointer font-medium hover:text-ink">
            Limits ({limits.length}, read only)
          </summary>
          <dl className="mt-1.5">
            {limits.map((limit) => (
              <div key={limit.name} className="border-line border-t py-1.5">
                <dt className="flex flex-wrap justify-between gap-x-4">
                  <code className="font-mono text-xs leading-5">{limit.name}</code>
                  <b className="num max-w-full break-words font-medium">{limit.value}</b>
                </dt>
                <dd className="text-ink-3 text-xs">{limit.about}</dd>
              </div>
            ))}
          </dl>
        </details>
      </div>
    </div>
  );
}

function ActiveFindings({ detector }: { detector: string }) {
  const query = useQuery({ ...detectorFindingsQuery(detector), refetchInterval: usePolling(20_000) });
  return (
    <section>
      <h3 className="font-medium">Newest active findings</h3>
      <QueryView query={query}>
        {({ items }) =>
          items.length === 0 ? (
            <p className="text-ink-3">None.</p>
          ) : (
            <ul>
              {items.map((finding) => (
                <li key={finding.id} className="border-line border-t py-1.5 first:border-t-0">
                  {readable(finding.evidence.summary)}{" "}
                  <span className="text-ink-3 text-xs">
                    <Age at={finding.time} /> · <IncidentOf finding={finding} />
                  </span>
                </li>
              ))}
            </ul>
          )
        }
      </QueryView>
    </section>
  );
}

function IncidentOf({ finding }: { finding: Finding }) {
  if (finding.incident === null) return "no incident";
  return (
    <Link to="/incidents/$id" params={{ id: finding.incident }} className="text-accent hover:underline">
      incident
    </Link>
  );
}
