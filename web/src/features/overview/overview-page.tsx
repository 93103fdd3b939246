/** The first screen: what burns, what was decided by itself, what needs a human. In that order. */
import { useQuery } from "@tanstack/react-query";
import { isWaiting } from "@/features/remediation/model";
import { recentRemediationsQuery } from "@/features/remediation/queries";
import { usePolling } from "@/lib/live";
import { ErrorNotice, StaleStrip } from "@/ui/notice";
import { Page } from "@/ui/page";
import { SkeletonRows } from "@/ui/skeleton";
import { Burning } from "./burning";
import { Decided } from "./decided";
import { FleetStates } from "./fleet-states";
import { Headline } from "./headline";
import { JobsStrip } from "./jobs-strip";
import { NeedsHuman } from "./needs-human";
import { overviewQuery } from "./queries";

export function OverviewPage() {
  const query = useQuery({ ...overviewQuery(), refetchInterval: usePolling(15_000) });
  const retry = () => void query.refetch();
  const overview = query.data;
  const remediations = useQuery({ ...recentRemediationsQuery(), refetchInterval: usePolling(15_000) });
  const proposals = remediations.data?.filter(isWaiting) ?? [];
  return (
    <Page title="Overview">
      {query.isError &&
        (overview ? (
          <StaleStrip since={query.dataUpdatedAt / 1000} error={query.error} onRetry={retry} />
        ) : (
          <ErrorNotice error={query.error} onRetry={retry} />
        ))}
      {!overview && !query.isError && <SkeletonRows rows={8} />}
      {overview && (
        <>
          <Headline overview={overview} proposals={remediations.data ? proposals.length : null} />
          {overview.burning.length > 0 && <Burning incidents={overview.burning} />}
          <div className="grid items-start gap-4 xl:grid-cols-[minmax(0,3fr)_minmax(0,2fr)]">
            <div className="flex min-w-0 flex-col gap-4">
              <Decided decisions={overview.decided} />
              <JobsStrip jobs={overview.jobs} />
            </div>
            <div className="flex min-w-0 flex-col gap-4">
              <NeedsHuman
                incidents={overview.needs_human}
                proposals={proposals}
                error={remediations.data ? null : remediations.error}
              />
              <FleetStates nodes={overview.nodes} devices={overview.devices} />
            </div>
          </div>
        </>
      )}
    </Page>
  );
}
