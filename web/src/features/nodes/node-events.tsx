import { useQuery } from "@tanstack/react-query";
import { EventHistory } from "@/features/events/event-table";
import { usePolling } from "@/lib/live";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { SkeletonRows } from "@/ui/skeleton";
import { nodeEventsQuery } from "./queries";

export function NodeEvents({ node }: { node: string }) {
  const query = useQuery({ ...nodeEventsQuery(node), refetchInterval: usePolling(20_000) });
  return (
    <Panel title="Events" about="newest first" flush>
      <QueryView query={query} loading={<SkeletonRows className="px-4 pb-4" />}>
        {(page) =>
          page.items.length === 0 ? (
            <div className="px-4 pb-3">
              <Empty title="No events.">Process exits, kernel reports, and recoveries appear here.</Empty>
            </div>
          ) : (
            <EventHistory events={page.items} label={`Events of ${node}`} />
          )
        }
      </QueryView>
    </Panel>
  );
}
