/** The first page: active incidents, required actions, automated actions. */
import { useQuery } from "@tanstack/react-query";
import { Navigate } from "@tanstack/react-router";
import { PausedAdmission } from "@/features/admission/pauses";
import { meQuery, seesFleet } from "@/features/auth/queries";
import { isWaiting } from "@/features/remediation/model";
import { recentRemediationsQuery } from "@/features/remediation/queries";
import { usePolling } from "@/lib/live";
import { ErrorNotice, StaleStrip } from "@/ui/notice";
import { Page } from "@/ui/page";
import { SkeletonRows } from "@/ui/skeleton";
import { ActionRequired } from "./action-required";
import { ActiveIncidents } from "./active-incidents";
import { AutomatedActions } from "./automated-actions";
import { FleetStates } from "./fleet-states";
import { Headline } from "./headline";
import { JobsStrip } from "./jobs-strip";
import { overviewQuery } from "./queries";

export function OverviewPage() {
  const me = useQuery(meQuery()).data;
  return seesFleet(me) ? <FleetOverview /> : <Navigate to="/jobs" replace />;
}

function FleetOverview() {
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
      <PausedAdmission />
      {overview && (
        <>
          <Headline overview={overview} proposals={remediations.data ? proposals.length : null} />
          {overview.active_incidents.length > 0 && <ActiveIncidents incidents={overview.active_incidents} />}
          <div className="grid items-start gap-4 xl:grid-cols-[minmax(0,3fr)_minmax(0,2fr)]">
            <div className="flex min-w-0 flex-col gap-4">
              <AutomatedActions decisions={overview.automated_actions} />
              <JobsStrip jobs={overview.jobs} />
            </div>
            <div className="flex min-w-0 flex-col gap-4">
              <ActionRequired
                incidents={overview.needs_operator}
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
