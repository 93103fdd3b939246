/** The drain of many nodes that was started here: how far it is, and its undo. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { nodeKeys } from "@/features/nodes/queries";
import { plural } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { Button } from "@/ui/button";
import { ErrorNotice } from "@/ui/notice";
import { Progress } from "@/ui/progress";
import {
  drainingQuery,
  type FollowedDrain,
  followDrain,
  followedDrainQuery,
  moveNodes,
} from "./bulk-queries";
import { fleetKeys } from "./queries";

export function DrainProgress() {
  const drain = useQuery(followedDrainQuery());
  return drain.data && <Followed drain={drain.data} key={drain.data.nodes.join()} />;
}

function Followed({ drain }: { drain: FollowedDrain }) {
  const queryClient = useQueryClient();
  const query = useQuery({ ...drainingQuery(), refetchInterval: usePolling(4_000, 4_000) });
  const undo = useMutation({
    mutationFn: () =>
      moveNodes({
        action: "undrain",
        nodes: drain.nodes,
        reason: `Undo of the drain: ${drain.reason}`.slice(0, 2000),
        confirm_count: drain.nodes.length,
      }),
    onSettled: () => {
      for (const key of [nodeKeys.all, fleetKeys.snapshot("state"), ["overview"]])
        void queryClient.invalidateQueries({ queryKey: key });
    },
  });
  const dismiss = () => followDrain(queryClient, null);
  const ours = new Set(drain.nodes);
  const left = query.data?.filter((node) => ours.has(node.name)) ?? [];
  const jobs = new Set(left.flatMap((node) => node.jobs));
  const total = drain.nodes.length;
  const drained = query.data ? total - left.length : null;
  const kept = undo.data?.items.filter((item) => !item.accepted) ?? [];
  return (
    <section
      aria-label="Drain in progress"
      className="flex flex-col gap-2 rounded-lg border border-line bg-surface px-4 py-3 text-sm"
    >
      <div className="flex flex-wrap items-center gap-x-4 gap-y-2">
        <p role="status" className="min-w-0 flex-1 basis-64">
          {undo.data ? (
            `Drain undone: ${plural(undo.data.changed.length, "node")} returned${
              kept.length > 0 ? `, ${kept.length} already left service and need a validation` : ""
            }.`
          ) : (
            <>
              <b className="font-semibold">
                {drained ?? "–"} of {plural(total, "node")} drained
              </b>
              {left.length > 0 && `, ${left.length} still draining`}
              {jobs.size > 0 && ` with ${plural(jobs.size, "job")}: ${[...jobs].slice(0, 5).join(", ")}`}
              <span className="block truncate text-ink-3 text-xs">{drain.reason}</span>
            </>
          )}
        </p>
        {!undo.data && (
          <Button onClick={() => undo.mutate()} busy={undo.isPending} disabled={left.length === 0}>
            Undo
          </Button>
        )}
        <Button kind="ghost" onClick={dismiss}>
          Dismiss
        </Button>
      </div>
      {!undo.data && <Progress value={drained === null ? null : drained / total} label="Drained nodes" />}
      {(undo.isError || query.isError) && <ErrorNotice error={undo.error ?? query.error} />}
    </section>
  );
}
