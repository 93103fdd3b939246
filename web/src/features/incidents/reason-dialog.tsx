import { useMutation, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { client, idempotencyKey, unwrap } from "@/api/client";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Field, TextArea } from "@/ui/field";
import { ErrorNotice } from "@/ui/notice";
import { useToast } from "@/ui/toast";
import { incidentKeys } from "./queries";

export type Transition = "acknowledge" | "close";

const words: Record<Transition, { title: string; about: string; done: string; verb: string }> = {
  acknowledge: {
    title: "Acknowledge the incident",
    about: "Says that a person has taken it up. It stays open.",
    done: "Acknowledged",
    verb: "Acknowledge",
  },
  close: {
    title: "Close the incident",
    about: "Its history is kept. If the fault is found again, a new incident opens.",
    done: "Closed",
    verb: "Close incident",
  },
};

interface Props {
  id: string;
  transition: Transition;
  onClose: () => void;
}

/** A person's change always comes with a reason; it becomes part of the history. */
export function ReasonDialog({ id, transition, onClose }: Props) {
  const [reason, setReason] = useState("");
  const [headers] = useState(idempotencyKey);
  const queryClient = useQueryClient();
  const say = useToast();
  const word = words[transition];
  const change = useMutation({
    mutationFn: () => {
      const options = { params: { path: { id } }, body: { reason: reason.trim() }, headers };
      return unwrap(
        transition === "close"
          ? client.POST("/v1/incidents/{id}:close", options)
          : client.POST("/v1/incidents/{id}:acknowledge", options),
      );
    },
    onSuccess: () => {
      void queryClient.invalidateQueries({ queryKey: incidentKeys.all });
      void queryClient.invalidateQueries({ queryKey: ["overview"] });
      say(word.done);
      onClose();
    },
  });

  function submit(event: FormEvent) {
    event.preventDefault();
    if (reason.trim()) change.mutate();
  }

  return (
    <Dialog open onOpenChange={(open) => !open && onClose()} title={word.title} about={word.about}>
      <form onSubmit={submit} className="flex flex-col gap-4">
        <Field label="Reason" hint="Part of the incident's history, with your name.">
          {(fieldId) => (
            <TextArea
              id={fieldId}
              autoFocus
              required
              maxLength={2000}
              value={reason}
              onChange={(event) => setReason(event.target.value)}
            />
          )}
        </Field>
        {change.isError && <ErrorNotice error={change.error} />}
        <div className="flex justify-end gap-2">
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" kind="primary" busy={change.isPending} disabled={!reason.trim()}>
            {word.verb}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
