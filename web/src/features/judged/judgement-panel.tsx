import { useQuery } from "@tanstack/react-query";
import type { Job } from "@/api/types";
import { namedNumber, signalLabel } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { lookOf } from "@/lib/states";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { SkeletonRows } from "@/ui/skeleton";
import { StatePill } from "@/ui/state-pill";
import { headline, nameOf, sortedAccounts, stances, whyOf } from "./judgement-model";
import { judgementQuery } from "./queries";
import type { DetectorAccount } from "./types";

/** Who watches this job, in the detectors' own words: one that learns or abstains must not pass for a clean bill. */
export function JudgementPanel({ job }: { job: Job }) {
  const query = useQuery({ ...judgementQuery(job.id), refetchInterval: usePolling(10_000, 5_000) });
  const accounts = query.data?.detectors ?? [];
  return (
    <Panel title="Judgement" about={accounts.length > 0 ? headline(accounts) : undefined} flush>
      <QueryView query={query} loading={<SkeletonRows className="px-4 pb-4" />}>
        {({ detectors }) =>
          detectors.length === 0 ? (
            <div className="px-4 pb-3">
              <Empty title="No detector judges this job.">
                {job.finished_at === null
                  ? "Detectors begin with the first signals of its ranks. Until then no finding is no sign of health."
                  : "The job has ended, and so has its judging."}
              </Empty>
            </div>
          ) : (
            <ul>
              {sortedAccounts(detectors).map((account) => (
                <Account key={account.name} account={account} />
              ))}
            </ul>
          )
        }
      </QueryView>
    </Panel>
  );
}

function Account({ account }: { account: DetectorAccount }) {
  const numbers = Object.entries(account.numbers);
  return (
    <li className="border-line border-t px-4 py-2 text-sm">
      <div className="flex flex-wrap items-center justify-between gap-x-3">
        <span className="font-medium">{nameOf(account)}</span>
        <StatePill look={lookOf(stances, account.state)} quiet />
      </div>
      {(account.state !== "judging" || account.why) && (
        <p className="text-ink-2 text-xs leading-5">{whyOf(account)}</p>
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
