/** Proposals of remediation, their history, and their limits. */
import { useInfiniteQuery } from "@tanstack/react-query";
import { getRouteApi } from "@tanstack/react-router";
import { useMemo } from "react";
import type { RemediationState } from "@/api/types";
import { plural } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { proposal as looks, proposalOrder } from "@/lib/status-styles";
import { Button } from "@/ui/button";
import { CopyMenu, curl } from "@/ui/copy";
import { Empty, ErrorNotice, StaleStrip } from "@/ui/notice";
import { Page } from "@/ui/page";
import { Panel } from "@/ui/panel";
import { Select } from "@/ui/select";
import { SkeletonRows } from "@/ui/skeleton";
import { BreakerPanel } from "./breaker";
import { byUrgency, isWaiting } from "./model";
import { ProposalCard } from "./proposal-card";
import { remediationsQuery } from "./queries";

const route = getRouteApi("/shell/remediation");

export function RemediationPage() {
  const filter = route.useSearch();
  const navigate = route.useNavigate();
  const query = useInfiniteQuery({ ...remediationsQuery(filter), refetchInterval: usePolling(15_000) });
  const items = useMemo(
    () => query.data && byUrgency(query.data.pages.flatMap((p) => p.items)),
    [query.data],
  );
  const waiting = items?.filter(isWaiting) ?? [];
  const set = (change: Partial<typeof filter>) =>
    void navigate({ search: (old) => ({ ...old, ...change }), replace: true });
  return (
    <Page
      title="Remediation"
      meta={
        filter.node && (
          <button
            type="button"
            onClick={() => set({ node: undefined })}
            className="rounded bg-sunken px-2 text-xs"
          >
            node {filter.node} ✕
          </button>
        )
      }
      actions={
        <>
          <CopyMenu
            commands={[
              curl("/v1/remediations"),
              { ...curl("/v1/remediation-status"), label: "curl breaker" },
            ]}
          />
          <Select
            label="State"
            value={filter.state ?? "any"}
            onChange={(value) => set({ state: value === "any" ? undefined : (value as RemediationState) })}
            groups={[
              {
                options: [
                  { value: "any", label: "Any state" },
                  ...proposalOrder.map((value) => ({ value, label: looks[value].label })),
                ],
              },
            ]}
          />
        </>
      }
    >
      <BreakerPanel />
      <Panel
        title="Proposals"
        about={
          waiting.length > 0 ? `${plural(waiting.length, "waiting proposal")}, then the newest` : undefined
        }
        flush
      >
        {query.isError && items && (
          <div className="px-4 pb-2">
            <StaleStrip since={query.dataUpdatedAt / 1000} error={query.error} />
          </div>
        )}
        {query.isError && !items && (
          <div className="px-4 pb-4">
            <ErrorNotice error={query.error} onRetry={() => void query.refetch()} />
          </div>
        )}
        {query.isPending && <SkeletonRows className="px-4 pb-4" />}
        {items?.length === 0 && (
          <div className="px-4 pb-3">
            {filter.state || filter.node ? (
              <Empty title="No matching proposals.">Clear the filters to see all proposals.</Empty>
            ) : (
              <Empty title="No proposals.">
                Mainstay proposes a drain if the recommended action for a fault needs an empty node.
              </Empty>
            )}
          </div>
        )}
        {items?.map((item) => (
          <ProposalCard key={item.id} proposal={item} />
        ))}
        {query.hasNextPage && (
          <div className="border-line border-t px-4 py-3">
            <Button busy={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
              Load more
            </Button>
          </div>
        )}
      </Panel>
    </Page>
  );
}
