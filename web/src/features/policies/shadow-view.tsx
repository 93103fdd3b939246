/** Errors for which the shadow version and the live version differ. */
import { useInfiniteQuery } from "@tanstack/react-query";
import type { Policy, ShadowVerdict } from "@/api/types";
import { usePolling } from "@/lib/live";
import { Age } from "@/ui/age";
import { Button } from "@/ui/button";
import { Empty, ErrorNotice } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { SkeletonRows } from "@/ui/skeleton";
import { type Column, columnsFor, DataTable } from "@/ui/table";
import { Place } from "./place";
import { policyShadowQuery } from "./queries";

const column = columnsFor<ShadowVerdict>();

const columns: Column<ShadowVerdict>[] = column.columns([
  column.accessor("time", {
    header: "When",
    cell: ({ row }) => (
      <span className="text-ink-2">
        <Age at={row.original.time} />
      </span>
    ),
  }),
  column.accessor("node", {
    header: "Where",
    cell: ({ row }) => <Place node={row.original.node} device={row.original.device} />,
  }),
  column.accessor("code", { header: "Code" }),
  column.accessor("live", {
    header: "Live result",
    cell: ({ row }) => <span className="text-ink-2">{row.original.live || "nothing"}</span>,
  }),
  column.accessor("shadow", {
    header: "Shadow result",
    cell: ({ row }) => <span className="font-medium">{row.original.shadow || "nothing"}</span>,
  }),
]) as Column<ShadowVerdict>[];

export function ShadowView({ shadow }: { shadow: Policy["shadow"] }) {
  const query = useInfiniteQuery({ ...policyShadowQuery(), refetchInterval: usePolling(20_000) });
  const items = query.data?.pages.flatMap((page) => page.items);
  return (
    <Panel
      title="Shadow and live differences"
      about={shadow ? `version ${shadow.version} in shadow` : undefined}
      flush
    >
      {query.isPending && <SkeletonRows className="px-4 pb-4" />}
      {query.isError && !items && (
        <div className="px-4 pb-4">
          <ErrorNotice error={query.error} onRetry={() => void query.refetch()} />
        </div>
      )}
      {items?.length === 0 && (
        <div className="px-4 pb-3">
          {shadow ? (
            <Empty title="No differences so far.">
              Errors with different results of both versions appear here.
            </Empty>
          ) : (
            <Empty title="No shadow version.">
              Upload overrides as shadow to evaluate them beside the live rules without any effect.
            </Empty>
          )}
        </div>
      )}
      {items && items.length > 0 && (
        <DataTable
          label="Shadow and live differences"
          data={items}
          columns={columns}
          rowId={(item) => item.id}
          grow="shadow"
          columnClass={{ shadow: "min-w-44" }}
        />
      )}
      {query.hasNextPage && (
        <div className="border-line border-t px-4 py-3">
          <Button busy={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
            Load more
          </Button>
        </div>
      )}
    </Panel>
  );
}
