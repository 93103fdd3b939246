/** The dcgm-exporter targets that the service reads, for nodes without a node daemon. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { client, unwrap } from "@/api/client";
import type { DcgmTarget } from "@/api/types";
import { age, integer } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { Age } from "@/ui/age";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Glyph } from "@/ui/glyph";
import { Empty, ErrorNotice } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { SkeletonRows } from "@/ui/skeleton";
import { useToast } from "@/ui/toast";
import { AddTarget } from "./add-target";
import { dcgmTargetsQuery, fleetKeys } from "./queries";

export function DcgmTargets() {
  const query = useQuery({ ...dcgmTargetsQuery(), refetchInterval: usePolling(20_000) });
  const [adding, setAdding] = useState(false);
  const [leaving, setLeaving] = useState<DcgmTarget | null>(null);
  return (
    <Panel
      title="dcgm-exporter targets"
      about="read by the service, for nodes without a node daemon"
      flush
      aside={<Button onClick={() => setAdding(true)}>Add target</Button>}
    >
      {query.isPending && <SkeletonRows rows={2} className="px-4 pb-4" />}
      {query.isError && (
        <div className="px-4 pb-3">
          <ErrorNotice error={query.error} onRetry={() => void query.refetch()} />
        </div>
      )}
      {query.data?.length === 0 && (
        <div className="px-4 pb-3">
          <Empty title="No targets.">
            Add a target to monitor a node that runs dcgm-exporter. The node daemon collects more signals and
            reports faults sooner.
          </Empty>
        </div>
      )}
      <ul>
        {query.data?.map((target) => (
          <Row key={target.id} target={target} onDelete={() => setLeaving(target)} />
        ))}
      </ul>
      {adding && <AddTarget onClose={() => setAdding(false)} />}
      {leaving && <Remove target={leaving} onClose={() => setLeaving(null)} />}
    </Panel>
  );
}

/** The state of a target: working, failing, disabled, or not read yet. */
function style(target: DcgmTarget) {
  if (!target.enabled) return { glyph: "ring", tone: "unknown", word: "off" } as const;
  if (target.last_error) return { glyph: "cross", tone: "quarantined", word: "failing, last read" } as const;
  if (target.last_scrape_at === null)
    return { glyph: "question", tone: "unknown", word: "not read yet" } as const;
  return { glyph: "dot", tone: "healthy", word: "read" } as const;
}

function Row({ target, onDelete }: { target: DcgmTarget; onDelete: () => void }) {
  const state = style(target);
  return (
    <li className="grid grid-cols-[minmax(0,1fr)_auto] items-center gap-x-4 border-line border-t px-4 py-2 text-sm">
      <div className="min-w-0">
        <p className="flex flex-wrap items-center gap-x-2.5">
          <Glyph name={state.glyph} tone={state.tone} size={11} />
          <span className="font-medium">{target.node ?? "by its host label"}</span>
          <span className="truncate font-mono text-ink-2 text-xs">{target.url}</span>
          <span className="num text-ink-3 text-xs">
            every {age(target.interval_seconds)} · {integer(target.samples)} samples · {state.word}
            {target.last_scrape_at !== null && (
              <>
                {" "}
                <Age at={target.last_scrape_at} />
              </>
            )}
          </span>
        </p>
        {target.last_error && <p className="ml-5 text-quarantined text-xs">{target.last_error}</p>}
      </div>
      <Button kind="ghost" icon="close" aria-label={`Remove ${target.url}`} onClick={onDelete} />
    </li>
  );
}

function Remove({ target, onClose }: { target: DcgmTarget; onClose: () => void }) {
  const queryClient = useQueryClient();
  const toast = useToast();
  const remove = useMutation({
    mutationFn: () =>
      unwrap<unknown>(client.DELETE("/v1/ingest/dcgm-targets/{id}", { params: { path: { id: target.id } } })),
    onSuccess: () => {
      void queryClient.invalidateQueries({ queryKey: fleetKeys.targets });
      toast("Target removed");
      onClose();
    },
  });
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title="Remove the target"
      about={`The service stops reading ${target.url}. Stored data is kept.`}
    >
      {remove.isError && <ErrorNotice error={remove.error} />}
      <div className="mt-3 flex justify-end gap-2">
        <Button onClick={onClose}>Cancel</Button>
        <Button kind="danger" busy={remove.isPending} onClick={() => remove.mutate()}>
          Remove
        </Button>
      </div>
    </Dialog>
  );
}
