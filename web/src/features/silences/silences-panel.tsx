/** Silences and maintenance windows that are not over, and the dialog that creates them. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { client, unwrap } from "@/api/client";
import { problemOf } from "@/api/problem";
import type { Silence } from "@/api/types";
import { plural } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { useNow } from "@/lib/time";
import { Clock } from "@/ui/age";
import { Button } from "@/ui/button";
import { Empty, ErrorNotice } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { useToast } from "@/ui/toast";
import { conditionsOf, endsSoon } from "./model";
import { silenceKeys, silencesQuery } from "./queries";
import { SilenceDialog } from "./silence-dialog";

export function SilencesPanel() {
  const query = useQuery({ ...silencesQuery(), refetchInterval: usePolling(10_000) });
  const [creating, setCreating] = useState(false);
  return (
    <Panel
      title="Silences"
      about="findings are recorded, and no message is sent"
      aside={<Button onClick={() => setCreating(true)}>New silence</Button>}
      flush
    >
      {query.isError && <ErrorNotice error={query.error} onRetry={() => void query.refetch()} />}
      {query.data?.length === 0 && (
        <div className="px-4 pb-3">
          <Empty title="Nothing is silenced." />
        </div>
      )}
      <ul>
        {query.data?.map((silence) => (
          <Row key={silence.id} silence={silence} />
        ))}
      </ul>
      {creating && <SilenceDialog onClose={() => setCreating(false)} />}
    </Panel>
  );
}

function Row({ silence }: { silence: Silence }) {
  const now = useNow();
  const queryClient = useQueryClient();
  const toast = useToast();
  const end = useMutation({
    mutationFn: () =>
      unwrap(client.POST("/v1/silences/{id}:end", { params: { path: { id: silence.id } }, body: {} })),
    onSuccess: () => toast("Ended: open incidents are sent"),
    onError: (error) => toast(problemOf(error).detail ?? "The silence was not ended"),
    onSettled: () => void queryClient.invalidateQueries({ queryKey: silenceKeys.all }),
  });
  return (
    <li className="flex flex-wrap items-center gap-x-4 gap-y-1 border-line border-t px-4 py-2 text-sm">
      <span className="min-w-0 flex-1">
        <span className="block break-words font-medium">{conditionsOf(silence).join(" · ")}</span>
        <span className="block break-words text-ink-2">
          {silence.reason} ({silence.actor})
        </span>
        <span className="block text-ink-3 text-xs">
          {silence.hours && `${silence.hours} ${silence.timezone} · `}
          {silence.state === "pending" && !silence.hours && (
            <>
              from <Clock at={silence.starts_at} />{" "}
            </>
          )}
          until <Clock at={silence.ends_at} /> · {plural(silence.nodes_matched, "node")} · {silence.state}
          {endsSoon(silence, now) && <b className="font-medium text-suspect"> · ends soon</b>}
        </span>
      </span>
      <Button
        busy={end.isPending}
        onClick={() => end.mutate()}
        aria-label={`End the silence of ${conditionsOf(silence).join(", ")}`}
      >
        End
      </Button>
    </li>
  );
}
