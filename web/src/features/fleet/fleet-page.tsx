/** The fleet: a heatmap of one signal and the node table, both filtered by the URL. */
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { getRouteApi } from "@tanstack/react-router";
import { useCallback, useMemo, useState } from "react";
import type { SelectMode } from "@/charts/heat-map";
import { nodesQuery } from "@/features/nodes/queries";
import { integer, plural } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { Button } from "@/ui/button";
import { CopyMenu, curl } from "@/ui/copy";
import { ErrorNotice, StaleStrip } from "@/ui/notice";
import { Page } from "@/ui/page";
import { Panel } from "@/ui/panel";
import { SkeletonRows } from "@/ui/skeleton";
import { DcgmTargets } from "./dcgm-targets";
import { DrainProgress } from "./drain-progress";
import { FleetMap } from "./fleet-map";
import { NodeFilters } from "./node-filters";
import { NodeTable } from "./node-table";
import { layoutQuery } from "./queries";
import { nextSelection } from "./selection";
import { SelectionBar } from "./selection-bar";

const route = getRouteApi("/shell/fleet");

export function FleetPage() {
  const search = route.useSearch();
  const navigate = route.useNavigate();
  const { state, rack, cohort, job, q, sort = "state" } = search;
  const query = useInfiniteQuery({
    ...nodesQuery({ state, rack, cohort, job, q, sort, facets: true }),
    refetchInterval: usePolling(15_000),
  });
  const nodes = useMemo(() => query.data?.pages.flatMap((page) => page.items), [query.data]);
  const first = query.data?.pages[0];
  const keep = useMemo(() => (first?.names ? new Set(first.names) : null), [first]);
  const filtered = Boolean(state || rack || cohort || job || q);
  const set = (change: Partial<typeof search>) =>
    void navigate({ search: (old) => ({ ...old, ...change }), replace: true });
  const setAt = useCallback(
    (at: number | undefined) => void navigate({ search: (old) => ({ ...old, at }), replace: true }),
    [navigate],
  );
  const clear = () => set(NO_FILTER);
  const layout = useQuery(layoutQuery());
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const select = useCallback(
    (names: string[], mode: SelectMode) => setSelected((old) => nextSelection(old, names, mode)),
    [],
  );

  return (
    <Page
      title="Fleet"
      actions={
        <CopyMenu
          commands={[curl("/v1/nodes"), { ...curl("/v1/fleet/heatmap-layout"), label: "curl layout" }]}
        />
      }
    >
      <DrainProgress />
      <FleetMap
        signal={search.signal}
        onSignal={(signal) => set({ signal: signal === "state" ? undefined : signal })}
        keep={filtered ? keep : null}
        highlight={search.highlight}
        onHighlight={(highlight) => set({ highlight })}
        selected={selected}
        onSelect={select}
        at={search.at}
        onAt={setAt}
        range={search.range ?? "24h"}
        onRange={(range) => set({ range: range === "24h" ? undefined : range })}
        group={search.group ?? "rack"}
        onGroup={(group) => set({ group: group === "rack" ? undefined : group })}
        zoom={search.zoom ?? "1x"}
        onZoom={(zoom) => set({ zoom: zoom === "1x" ? undefined : zoom })}
      />
      <Panel
        title="Nodes"
        about={
          nodes &&
          counted(nodes.length, first?.total ?? nodes.length) +
            (search.at === undefined ? "" : " · the present, not the time of the map")
        }
        flush
        aside={
          <NodeFilters
            values={{ state, rack, cohort, job, q }}
            facets={first?.facets ?? undefined}
            onChange={set}
            onClear={filtered ? clear : undefined}
          />
        }
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
          <NodeTable
            nodes={nodes}
            selected={selected}
            onSelect={select}
            onClear={filtered ? clear : undefined}
            sort={sort}
            onSort={(next) => set({ sort: next === "state" ? undefined : next })}
          />
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
      <SelectionBar
        selected={selected}
        places={layout.data?.slots ?? []}
        past={search.at !== undefined}
        onClear={() => setSelected(new Set())}
      />
    </Page>
  );
}

const NO_FILTER = { state: undefined, rack: undefined, cohort: undefined, job: undefined, q: undefined };

/** "100 of 10,000 nodes", or "24 nodes" if all are loaded. */
function counted(loaded: number, total: number): string {
  return loaded < total ? `${integer(loaded)} of ${plural(total, "node")}` : plural(total, "node");
}
