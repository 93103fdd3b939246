/** The fleet: a heatmap of one signal and the node table, both filtered by the URL. */
import { useInfiniteQuery } from "@tanstack/react-query";
import { getRouteApi } from "@tanstack/react-router";
import { useMemo } from "react";
import type { HealthState } from "@/api/types";
import { nodesQuery } from "@/features/nodes/queries";
import { plural } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { health, healthUrgency } from "@/lib/status-styles";
import { Button } from "@/ui/button";
import { CopyMenu, curl } from "@/ui/copy";
import { Input } from "@/ui/field";
import { ErrorNotice, StaleStrip } from "@/ui/notice";
import { Page } from "@/ui/page";
import { Panel } from "@/ui/panel";
import { Select } from "@/ui/select";
import { SkeletonRows } from "@/ui/skeleton";
import { DcgmTargets } from "./dcgm-targets";
import { FleetMap } from "./fleet-map";
import { NodeTable } from "./node-table";

const route = getRouteApi("/shell/fleet");

export function FleetPage() {
  const search = route.useSearch();
  const navigate = route.useNavigate();
  const filter = { state: search.state, q: search.q };
  const query = useInfiniteQuery({ ...nodesQuery(filter), refetchInterval: usePolling(15_000) });
  const nodes = useMemo(() => query.data?.pages.flatMap((page) => page.items), [query.data]);
  const filtered = Boolean(search.state || search.q);
  const set = (change: Partial<typeof search>) =>
    void navigate({ search: (old) => ({ ...old, ...change }), replace: true });

  return (
    <Page
      title="Fleet"
      actions={
        <CopyMenu
          commands={[curl("/v1/nodes"), { ...curl("/v1/fleet/heatmap-layout"), label: "curl layout" }]}
        />
      }
    >
      <FleetMap
        signal={search.signal}
        onSignal={(signal) => set({ signal: signal === "state" ? undefined : signal })}
        keep={filtered && nodes ? new Set(nodes.map((node) => node.name)) : null}
      />
      <Panel
        title="Nodes"
        about={nodes && `${plural(nodes.length, "node")}${query.hasNextPage ? " so far" : ""}`}
        flush
        aside={<Filters state={search.state} q={search.q} onChange={set} />}
      >
        {query.isError && nodes && (
          <div className="px-4 pb-2">
            <StaleStrip since={query.dataUpdatedAt / 1000} error={query.error} />
          </div>
        )}
        {query.isError && !nodes && (
          <div className="px-4 pb-4">
            <ErrorNotice error={query.error} onRetry={() => void query.refetch()} />
          </div>
        )}
        {query.isPending && <SkeletonRows className="px-4 pb-4" />}
        {nodes && (
          <NodeTable nodes={nodes} filtered={filtered} sort={search.sort} onSort={(sort) => set({ sort })} />
        )}
        {query.hasNextPage && (
          <div className="px-4 py-3">
            <Button busy={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
              Load more
            </Button>
          </div>
        )}
      </Panel>
      <DcgmTargets />
    </Page>
  );
}

interface FilterProps {
  state: HealthState | undefined;
  q: string | undefined;
  onChange: (change: { state?: HealthState; q?: string }) => void;
}

function Filters({ state, q, onChange }: FilterProps) {
  return (
    <>
      <Input
        type="search"
        aria-label="Filter nodes by name"
        placeholder="Filter by name"
        defaultValue={q ?? ""}
        onChange={(event) => onChange({ q: event.target.value || undefined })}
        className="w-44"
      />
      <Select
        label="Filter by state"
        value={state ?? "any"}
        onChange={(value) => onChange({ state: value === "any" ? undefined : (value as HealthState) })}
        groups={[
          {
            options: [
              { value: "any", label: "Any state" },
              ...healthUrgency.map((value) => ({ value, label: health[value].label })),
            ],
          },
        ]}
      />
    </>
  );
}
