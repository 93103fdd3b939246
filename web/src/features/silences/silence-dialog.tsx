/** The dialog that creates a silence. */
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { client, unwrap } from "@/api/client";
import { plural } from "@/lib/format";
import { ActDialog } from "@/ui/act-dialog";
import { Field, Input } from "@/ui/field";
import { useToast } from "@/ui/toast";
import { bodyOf, type Draft, emptyDraft } from "./model";
import { silenceKeys } from "./queries";

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

interface Props {
  initial?: Draft;
  onClose: () => void;
}

export function SilenceDialog({ initial = emptyDraft, onClose }: Props) {
  const queryClient = useQueryClient();
  const toast = useToast();
  const [draft, setDraft] = useState(initial);
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
