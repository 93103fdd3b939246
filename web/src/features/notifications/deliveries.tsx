/** The delivery log: each message to each receiver, its attempts, and the last error. */
import { useInfiniteQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import type { Delivery } from "@/api/types";
import { humanize, integer } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { Age, Clock } from "@/ui/age";
import { Button } from "@/ui/button";
import { Empty } from "@/ui/notice";
import { QueryView } from "@/ui/query-view";
import { StatePill } from "@/ui/state-pill";
import { type Column, columnsFor, DataTable } from "@/ui/table";
import { deliveryStyles } from "./model";
import { type DeliveryFilter, deliveriesQuery } from "./queries";

const column = columnsFor<Delivery>();
const columns: Column<Delivery>[] = column.columns([
  column.accessor("created_at", { header: "Time", cell: ({ row }) => <Age at={row.original.created_at} /> }),
  column.accessor("receiver", { header: "Receiver" }),
  column.accessor("event", { header: "Event", cell: ({ row }) => humanize(row.original.event) }),
  column.accessor("state", {
    header: "State",
    cell: ({ row }) => <StatePill look={deliveryStyles[row.original.state]} quiet />,
  }),
  column.accessor("title", { header: "Message", cell: ({ row }) => <Title delivery={row.original} /> }),
  column.accessor("attempts", { header: "Attempts", cell: ({ row }) => integer(row.original.attempts) }),
]);

function Title({ delivery }: { delivery: Delivery }) {
  return (
    <span className="block py-1.5">
      {delivery.incident_id ? (
        <Link
          to="/incidents/$id"
          params={{ id: delivery.incident_id }}
          className="block truncate hover:underline"
          title={delivery.title}
        >
          {delivery.title}
        </Link>
      ) : (
        <span className="block truncate" title={delivery.title}>
          {delivery.title}
        </span>
      )}
      <span className="block text-ink-3 text-xs sm:hidden">
        {humanize(delivery.event)} to {delivery.receiver}, <Age at={delivery.created_at} />
      </span>
      {delivery.error && (
        <span className="block truncate text-quarantined text-xs" title={delivery.error}>
          {delivery.error}
          {delivery.due_at !== null && (
            <>
              {" "}
              · next attempt at <Clock at={delivery.due_at} />
            </>
          )}
        </span>
      )}
    </span>
  );
}

export function Deliveries({ filter, empty }: { filter: DeliveryFilter; empty: string }) {
  const query = useInfiniteQuery({ ...deliveriesQuery(filter), refetchInterval: usePolling(5_000) });
  return (
    <QueryView query={query}>
      {(data) => {
        const rows = data.pages.flatMap((page) => page.items);
        if (rows.length === 0)
          return (
            <div className="px-4 pb-3">
              <Empty title={empty} />
            </div>
          );
        return (
          <>
            <DataTable
              label="Messages"
              data={rows}
              columns={columns}
              rowId={(row) => row.id}
              right={["attempts"]}
              grow="title"
              columnClass={{
                receiver: "max-sm:hidden",
                event: "max-sm:hidden",
                attempts: "max-md:hidden",
                created_at: "max-sm:hidden",
              }}
              sorted
            />
            {query.hasNextPage && (
              <div className="px-4 py-2">
                <Button busy={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
                  Show more
                </Button>
              </div>
            )}
          </>
        );
      }}
    </QueryView>
  );
}
