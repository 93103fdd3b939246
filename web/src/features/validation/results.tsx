import { useInfiniteQuery } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { useMemo } from "react";
import type { Validation } from "@/api/types";
import { duration } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { statusStyleOf, verdict } from "@/lib/status-styles";
import { Age } from "@/ui/age";
import { Button } from "@/ui/button";
import { Glyph } from "@/ui/glyph";
import { Empty, ErrorNotice, StaleStrip } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { SkeletonRows } from "@/ui/skeleton";
import { type Column, columnsFor, DataTable } from "@/ui/table";
import { tally } from "./labels";
import { type ValidationFilter, validationsQuery } from "./queries";
import { ValidationProgress } from "./validation-progress";

const column = columnsFor<Validation>();

const columns: Column<Validation>[] = column.columns([
  column.accessor("verdict", {
    header: "Verdict",
    cell: ({ row }) => <ValidationProgress validation={row.original} />,
  }),
  column.accessor("node", {
    header: "Node",
    cell: ({ row }) => (
      <Link
        to="/nodes/$name"
        params={{ name: row.original.node }}
        search={{}}
        className="font-medium hover:underline"
        tabIndex={-1}
      >
        {row.original.node}
      </Link>
    ),
  }),
  column.accessor("suite", { header: "Suite" }),
  column.accessor("results", {
    id: "metrics",
    header: "Metrics",
    cell: ({ row }) => <Tally validation={row.original} />,
  }),
  column.accessor("reason", {
    header: "Reason",
    cell: ({ row }) => (
      <span className="block truncate text-ink-2" title={row.original.reason}>
        {row.original.reason}
      </span>
    ),
  }),
  column.accessor((v) => (v.finished_at && v.started_at ? v.finished_at - v.started_at : null), {
    id: "took",
    header: "Duration",
    cell: ({ getValue }) => duration(getValue() as number | null),
  }),
  column.accessor((v) => v.finished_at ?? v.created_at, {
    id: "when",
    header: "When",
    cell: ({ row }) => (
      <span className="text-ink-2">
        <Age at={row.original.finished_at ?? row.original.created_at} />
      </span>
    ),
  }),
]) as Column<Validation>[];

function Tally({ validation }: { validation: Validation }) {
  return (
    <span className="num inline-flex gap-2.5 text-xs">
      {tally(validation.results).map(([v, count]) => {
        const look = statusStyleOf(verdict, v);
        return (
          <span key={v} title={look.label} className="inline-flex items-center gap-1">
            <Glyph name={look.glyph} tone={look.tone} size={10} />
            {count}
          </span>
        );
      })}
    </span>
  );
}

export function Results({ filter, onClear }: { filter: ValidationFilter; onClear: () => void }) {
  const query = useInfiniteQuery({ ...validationsQuery(filter), refetchInterval: usePolling(10_000) });
  const items = useMemo(() => query.data?.pages.flatMap((page) => page.items), [query.data]);
  const navigate = useNavigate();
  const narrowed = filter.node ?? filter.sweep;
  return (
    <Panel
      title="Results"
      about={narrowed ? `of ${narrowed}` : "newest first"}
      flush
      aside={narrowed && <Button onClick={onClear}>Show all</Button>}
    >
      {query.isError && items && <StaleStrip since={query.dataUpdatedAt / 1000} error={query.error} />}
      {query.isError && !items && (
        <div className="px-4 pb-4">
          <ErrorNotice error={query.error} onRetry={() => void query.refetch()} />
        </div>
      )}
      {query.isPending && <SkeletonRows className="px-4 pb-4" />}
      {items?.length === 0 && (
        <div className="px-4 pb-3">
          <Empty title="No validations yet.">
            The health of a node without a verdict is unknown. Run a suite now, or create a sweep that runs
            one by schedule.
          </Empty>
        </div>
      )}
      {items && items.length > 0 && (
        <DataTable
          label="Validations"
          data={items}
          columns={columns}
          rowId={(v) => v.id}
          right={["took", "when"]}
          grow="reason"
          onOpen={(v) => void navigate({ to: "/validation/$id", params: { id: v.id } })}
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
  );
}
