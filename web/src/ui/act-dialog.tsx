/** A dialog for an action with a reason. If the service rejects it, the dialog shows the problem. */
import { useMutation } from "@tanstack/react-query";
import { type FormEvent, type ReactNode, useState } from "react";
import { idempotencyKey } from "@/api/client";
import { Button } from "./button";
import { Dialog } from "./dialog";
import { Field, TextArea } from "./field";
import { ErrorNotice } from "./notice";

export interface Act {
  reason: string;
  headers: ReturnType<typeof idempotencyKey>;
}

interface Props {
  title: string;
  about: ReactNode;
  verb: string;
  /** Of the text field; "Reason" if not given. */
  label?: string;
  hint?: string;
  /** Whether the text may be empty. */
  optional?: boolean;
  danger?: boolean;
  /** What the action is about is not complete, or not possible. */
  blocked?: boolean;
  run: (act: Act) => Promise<unknown>;
  onDone: () => void;
  onClose: () => void;
  children?: ReactNode;
  /** Fields before the text; the first one gets the focus. */
  lead?: ReactNode;
}

export function ActDialog({
  title,
  about,
  verb,
  label = "Reason",
  hint,
  optional = false,
  danger,
  blocked,
  run,
  onDone,
  onClose,
  children,
  lead,
}: Props) {
  const [reason, setReason] = useState("");
  const [headers] = useState(idempotencyKey); // one dialog is one action, for any number of clicks
  const act = useMutation({
    mutationFn: () => run({ reason: reason.trim(), headers }),
    onSuccess: () => {
      onClose();
      onDone();
    },
  });

  const complete = optional || reason.trim() !== "";

  function submit(event: FormEvent) {
    event.preventDefault();
    if (complete && !blocked && !act.isPending) act.mutate();
  }

  return (
    <Dialog open onOpenChange={(open) => !open && onClose()} title={title} about={about}>
      <form onSubmit={submit} className="flex flex-col gap-4">
        {lead}
        <Field label={label} hint={hint ?? "Stored in the history with your name."}>
          {(id) => (
            <TextArea
              id={id}
              autoFocus={!lead}
              required={!optional}
              maxLength={2000}
              value={reason}
              onChange={(event) => setReason(event.target.value)}
              onKeyDown={(event) => {
                if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
              }}
            />
          )}
        </Field>
        {children}
        {act.isError && <ErrorNotice error={act.error} />}
        <div className="flex justify-end gap-2">
          <Button onClick={onClose}>Cancel</Button>
          <Button
            type="submit"
            kind={danger ? "danger" : "primary"}
            busy={act.isPending}
            disabled={!complete || blocked}
          >
            {verb}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
