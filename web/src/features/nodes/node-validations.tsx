import { useInfiniteQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { progressText } from "@/features/validation/labels";
import { validationsQuery } from "@/features/validation/queries";
import { usePolling } from "@/lib/live";
import { statusStyleOf, verdict } from "@/lib/status-styles";
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
          <Empty title="No validations." action={<Button onClick={onRun}>Run validation</Button>}>
            The condition of this node is unknown until a suite passes.
          </Empty>
        </div>
      )}
      <ul>
        {items?.slice(0, 6).map((item) => (
          <li key={item.id} className="flex items-center gap-3 border-line border-t px-4 py-2 text-sm">
            {item.state === "done" || item.state === "expired" ? (
              <StatePill look={statusStyleOf(verdict, item.verdict)} quiet />
            ) : (
              <span className="text-ink-2 text-xs">{progressText(item)}</span>
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
