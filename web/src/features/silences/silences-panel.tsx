/** Silences and maintenance windows that are not over, and the dialogs that create and end them. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { client, unwrap } from "@/api/client";
import { problemOf } from "@/api/problem";
import type { Silence } from "@/api/types";
import { plural } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { useNow } from "@/lib/time";
import { ActDialog } from "@/ui/act-dialog";
import { Clock } from "@/ui/age";
import { Button } from "@/ui/button";
import { Field, Input } from "@/ui/field";
import { Empty, ErrorNotice } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { useToast } from "@/ui/toast";
import { bodyOf, conditionsOf, type Draft, emptyDraft, endsSoon } from "./model";
import { silenceKeys, silencesQuery } from "./queries";

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
      {creating && <CreateDialog onClose={() => setCreating(false)} />}
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

const fields: { name: keyof Draft; label: string; hint?: string }[] = [
  { name: "nodes", label: "Nodes", hint: "Names or patterns such as n1*, separated by spaces." },
  { name: "racks", label: "Racks" },
  { name: "switches", label: "Switches" },
  { name: "cohorts", label: "Cohorts" },
  { name: "jobs", label: "Jobs" },
  { name: "kinds", label: "Kinds of findings", hint: "Such as xid or node_lost." },
  { name: "detectors", label: "Detectors" },
  { name: "length", label: "Length in hours" },
  { name: "hours", label: "Only in these hours", hint: "Such as Sat 02:00-06:00. Empty: always." },
  { name: "timezone", label: "Time zone of the hours" },
];

function CreateDialog({ onClose }: { onClose: () => void }) {
  const queryClient = useQueryClient();
  const toast = useToast();
  const [draft, setDraft] = useState(emptyDraft);
  const body = bodyOf(draft, Date.now() / 1000);
  return (
    <ActDialog
      title="New silence"
      about="All conditions that are given must hold."
      verb="Silence"
      blocked={!body}
      run={async ({ reason, headers }) => {
        if (!body) return;
        const silence = await unwrap(client.POST("/v1/silences", { body: { ...body, reason }, headers }));
        toast(
          silence.nodes_matched > 0
            ? `${plural(silence.nodes_matched, "node")} silenced`
            : "In force, but no enrolled node matches: check the names",
        );
      }}
      onClose={onClose}
      onDone={() => void queryClient.invalidateQueries({ queryKey: silenceKeys.all })}
      lead={
        <div className="grid gap-3 sm:grid-cols-2">
          {fields.map(({ name, label, hint }, index) => (
            <Field key={name} label={label} hint={hint}>
              {(id) => (
                <Input
                  id={id}
                  autoFocus={index === 0}
                  value={draft[name]}
                  onChange={(event) => setDraft({ ...draft, [name]: event.target.value })}
                />
              )}
            </Field>
          ))}
        </div>
      }
    />
  );
}
