/** Dialogs that assign an incident, hand it over, or comment on it. */
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { client, unwrap } from "@/api/client";
import type { Incident } from "@/api/types";
import { ActDialog } from "@/ui/act-dialog";
import { Field, Input } from "@/ui/field";
import { useToast } from "@/ui/toast";
import { incidentKeys } from "./queries";

interface Props {
  incident: Incident;
  onClose: () => void;
}

export function AssignDialog({ incident, onClose }: Props) {
  const queryClient = useQueryClient();
  const toast = useToast();
  const [assignee, setAssignee] = useState(incident.assignee ?? "");
  return (
    <ActDialog
      title={incident.assignee ? "Hand the incident over" : "Assign the incident"}
      about="A person or a team that works on the incident from now on. Empty: no one."
      verb={assignee.trim() || incident.assignee === null ? "Assign" : "Assign to no one"}
      label="Comment"
      hint="For who takes over: what is known, what was tried."
      optional
      run={({ reason, headers }) =>
        unwrap(
          client.POST("/v1/incidents/{id}:assign", {
            params: { path: { id: incident.id } },
            body: { assignee: assignee.trim() || null, comment: reason },
            headers,
          }),
        )
      }
      onClose={onClose}
      onDone={() => {
        void queryClient.invalidateQueries({ queryKey: incidentKeys.all });
        toast("Assigned");
      }}
      lead={
        <Field label="Assignee">
          {(id) => (
            <Input
              id={id}
              autoFocus
              value={assignee}
              maxLength={200}
              onChange={(event) => setAssignee(event.target.value)}
            />
          )}
        </Field>
      }
      blocked={!assignee.trim() && incident.assignee === null}
    />
  );
}

export function CommentDialog({ incident, onClose }: Props) {
  const queryClient = useQueryClient();
  return (
    <ActDialog
      title="Comment"
      about="A note on the timeline of the incident."
      verb="Add comment"
      label="Comment"
      run={({ reason, headers }) =>
        unwrap(
          client.POST("/v1/incidents/{id}:comment", {
            params: { path: { id: incident.id } },
            body: { text: reason },
            headers,
          }),
        )
      }
      onClose={onClose}
      onDone={() => void queryClient.invalidateQueries({ queryKey: incidentKeys.all })}
    />
  );
}
