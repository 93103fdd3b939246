/** A dialog with fields of its own. If the service rejects them, the dialog shows the problem. */
import { useMutation } from "@tanstack/react-query";
import type { FormEvent, ReactNode } from "react";
import { Button } from "./button";
import { Dialog } from "./dialog";
import { ErrorNotice } from "./notice";

interface Props {
  title: string;
  about?: ReactNode;
  verb: string;
  danger?: boolean;
  /** The fields are not complete. */
  blocked?: boolean;
  run: () => Promise<unknown>;
  onDone: () => void;
  onClose: () => void;
  children?: ReactNode;
}

export function FormDialog({ title, about, verb, danger, blocked, run, onDone, onClose, children }: Props) {
  const act = useMutation({ mutationFn: run, onSuccess: onDone });
  function submit(event: FormEvent) {
    event.preventDefault();
    if (!blocked && !act.isPending) act.mutate();
  }
  return (
    <Dialog open onOpenChange={(open) => !open && onClose()} title={title} about={about}>
      <form onSubmit={submit} className="flex flex-col gap-4">
        {children}
        {act.isError && <ErrorNotice error={act.error} />}
        <div className="flex justify-end gap-2">
          <Button onClick={onClose}>Cancel</Button>
          <Button
            type="submit"
            kind={danger ? "danger" : "primary"}
            busy={act.isPending}
            disabled={blocked ?? false}
          >
            {verb}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
