import { useInfiniteQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { useMemo } from "react";
import type { Incident, IncidentState } from "@/api/types";
import { duration, humanize } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { incidentOrder, incident as looks, severity, statusStyleOf } from "@/lib/status-styles";
import { serverNow } from "@/lib/time";
import { Age } from "@/ui/age";
import { Button } from "@/ui/button";
import { CopyMenu, curl } from "@/ui/copy";
import { Glyph } from "@/ui/glyph";
import { Empty, ErrorNotice, StaleStrip } from "@/ui/notice";
import { Page } from "@/ui/page";
import { Panel } from "@/ui/panel";
import { Select } from "@/ui/select";
import { SkeletonRows } from "@/ui/skeleton";
import { StatePill } from "@/ui/state-pill";
import { type Column, columnsFor, DataTable } from "@/ui/table";
import { type Cause, causeLabel, causeNames } from "./cause";
import { LifeMini } from "./lifecycle-bar";
import { incidentDuration, isActive, subject, summaryOf, titleOf } from "./lifecycle-model";
import { incidentsQuery } from "./queries";

const route = getRouteApi("/shell/incidents");
const column = columnsFor<Incident>();
const severityOrder = ["critical", "warning", "info"];

const columns: Column<Incident>[] = column.columns([
  column.accessor((incident) => severityOrder.indexOf(incident.severity), {
    id: "incident",
    header: "Incident",
    cell: ({ row }) => {
      const look = statusStyleOf(severity, row.original.severity);
      return (
        <span className="flex min-w-0 items-center gap-2.5 py-1.5">
          <span title={look.label}>
            <Glyph name={look.glyph} tone={look.tone} />
          </span>
          <span className="min-w-0 truncate">
            <Link
              to="/incidents/$id"
              params={{ id: row.original.id }}
              className="font-medium text-ink hover:underline"
              tabIndex={-1}
            >
              {titleOf(row.original)}
            </Link>
            <span className="block truncate text-ink-3 text-xs">{summaryOf(row.original)}</span>
          </span>
        </span>
      );
    },
  }),
  column.accessor((incident) => subject(incident), {
    id: "subject",
    header: "About",
    cell: ({ row }) => (
      <span className="block whitespace-nowrap text-ink-2">
        {subject(row.original)}
        {row.original.cause && (
          <span className="block text-ink-3 text-xs" title={causeLabel(row.original.cause).about}>
            cause: {causeLabel(row.original.cause).label}
          </span>
        )}
      </span>
    ),
  }),
  column.accessor((incident) => incident.kinds.join(), {
    id: "kinds",
    header: "Kinds",
    cell: ({ row }) => <span className="text-ink-2">{row.original.kinds.map(humanize).join(", ")}</span>,
  }),
  column.accessor((incident) => incidentOrder.indexOf(incident.state), {
    id: "state",
    header: "State",
    cell: ({ row }) => (
      <span className="flex items-center gap-3">
        <span className="w-22">
          <StatePill look={statusStyleOf(looks, row.original.state)} quiet />
        </span>
        <span className="max-[1500px]:hidden">
          <LifeMini incident={row.original} />
        </span>
        {row.original.needs_operator && (
          <span className="inline-flex items-center gap-1 whitespace-nowrap text-draining text-xs">
            <Glyph name="down" size={9} /> needs an operator
          </span>
        )}
      </span>
    ),
  }),
  column.accessor((incident) => incidentDuration(incident, serverNow()), {
    id: "duration",
    header: "Duration",
    cell: ({ row }) =>
      isActive(row.original) ? (
        <span className="text-quarantined">
          <Age at={row.original.opened_at} suffix="" />
        </span>
      ) : (
        duration(incidentDuration(row.original, 0))
      ),
  }),
  column.accessor("opened_at", {
    id: "opened",
    header: "Opened",
    cell: ({ row }) => (
      <span className="text-ink-2">
        <Age at={row.original.opened_at} />
      </span>
    ),
  }),
]) as Column<Incident>[];

export function IncidentsPage() {
  const search = route.useSearch();
  const navigate = route.useNavigate();
  const { sort, ...filter } = search;
  const query = useInfiniteQuery({ ...incidentsQuery(filter), refetchInterval: usePolling(15_000) });
  const items = useMemo(() => query.data?.pages.flatMap((page) => page.items), [query.data]);
  const narrowed = Boolean(filter.state || filter.cause || filter.job || filter.node);
  const set = (change: Partial<typeof search>) =>
    void navigate({ search: (old) => ({ ...old, ...change }), replace: true });
  return (
    <Page
      title="Incidents"
      meta={<Narrowing job={filter.job} node={filter.node} onClear={set} />}
      actions={
        <>
          <CopyMenu commands={[curl("/v1/incidents")]} />
          <Select
            label="Cause"
            value={filter.cause ?? "any"}
            onChange={(value) => set({ cause: value === "any" ? undefined : (value as Cause) })}
            groups={[
              {
                options: [
                  { value: "any", label: "Any cause" },
                  ...causeNames.map((value) => ({ value, label: causeLabel(value).label })),
                ],
              },
            ]}
          />
          <Select
            label="State"
            value={filter.state ?? "any"}
            onChange={(value) => set({ state: value === "any" ? undefined : (value as IncidentState) })}
            groups={[
              {
                options: [
                  { value: "any", label: "Any state" },
                  ...incidentOrder.map((value) => ({ value, label: looks[value].label })),
                ],
              },
            ]}
          />
        </>
      }
    >
      {query.isError && items && <StaleStrip since={query.dataUpdatedAt / 1000} error={query.error} />}
      {query.isError && !items && <ErrorNotice error={query.error} onRetry={() => void query.refetch()} />}
      {query.isPending && <SkeletonRows rows={6} />}
      {items?.length === 0 && (
        <Panel>
          {narrowed ? (
            <Empty title="No matching incidents.">Clear the filters to see all incidents.</Empty>
          ) : (
            <Empty title="No incidents recorded.">
              Incidents appear here when a finding shows a fault, with their evidence, decisions, and actions.
            </Empty>
          )}
        </Panel>
      )}
      {items && items.length > 0 && (
        <Panel flush>
          <DataTable
            label="Incidents"
            data={items}
            columns={columns}
            rowId={(incident) => incident.id}
            sort={sort ?? "-opened"}
            onSort={(next) => set({ sort: next })}
            right={["duration", "opened"]}
            grow="incident"
            columnClass={{ kinds: "max-[1700px]:hidden", subject: "max-md:hidden" }}
            onOpen={(incident) => void navigate({ to: "/incidents/$id", params: { id: incident.id } })}
          />
          {query.hasNextPage && (
            <div className="px-4 py-3">
              <Button busy={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
                Load more
              </Button>
            </div>
          )}
        </Panel>
      )}
    </Page>
  );
}

interface NarrowingProps {
  job: string | undefined;
  node: string | undefined;
  onClear: (change: { job?: undefined; node?: undefined }) => void;
}

function Narrowing({ job, node, onClear }: NarrowingProps) {
  if (!job && !node) return null;
  return (
    <>
      {job && (
        <button
          type="button"
          onClick={() => onClear({ job: undefined })}
          className="rounded bg-sunken px-2 text-xs"
        >
          job {job} ✕
        </button>
      )}
      {node && (
        <button
          type="button"
          onClick={() => onClear({ node: undefined })}
          className="rounded bg-sunken px-2 text-xs"
        >
          node {node} ✕
        </button>
      )}
    </>
  );
}
