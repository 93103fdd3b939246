import { useInfiniteQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { validationsQuery } from "@/features/validation/queries";
import { standingText } from "@/features/validation/words";
import { usePolling } from "@/lib/live";
import { lookOf, verdict } from "@/lib/states";
import { Age } from "@/ui/age";
import { Button } from "@/ui/button";
import { Empty, ErrorNotice } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { SkeletonRows } from "@/ui/skeleton";
import { StatePill } from "@/ui/state-pill";

export function NodeValidations({ node, onRun }: { node: string; onRun: () => void }) {
  const query = useInfiniteQuery({ ...validationsQuery({ node }), refetchInterval: usePolling(15_000) });
  const items = query.data?.pages[0]?.items;
  return (
    <Panel
      title="Validations"
      flush
      aside={
        <Link to="/validation" search={{ node }} className="text-accent text-sm hover:underline">
          All
        </Link>
      }
    >
      {query.isPending && <SkeletonRows rows={3} className="px-4 pb-4" />}
      {query.isError && !items && (
        <div className="px-4 pb-4">
          <ErrorNotice error={query.error} />
        </div>
      )}
      {items?.length === 0 && (
        <div className="px-4 pb-3">
          <Empty title="Never validated." action={<Button onClick={onRun}>Run the first</Button>}>
            Until a suite passes, this node is not known to be fit.
          </Empty>
        </div>
      )}
      <ul>
        {items?.slice(0, 6).map((item) => (
          <li key={item.id} className="flex items-center gap-3 border-line border-t px-4 py-2 text-sm">
            {item.state === "done" || item.state === "expired" ? (
              <StatePill look={lookOf(verdict, item.verdict)} quiet />
            ) : (
              <span className="text-ink-2 text-xs">{standingText(item)}</span>
            )}
            <Link to="/validation/$id" params={{ id: item.id }} className="font-medium hover:underline">
              {item.suite}
            </Link>
            <span className="ml-auto text-ink-3 text-xs">
              <Age at={item.finished_at ?? item.created_at} />
            </span>
          </li>
        ))}
      </ul>
    </Panel>
  );
}
