import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { client, idempotencyKey, unwrap } from "@/api/client";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Field, Input } from "@/ui/field";
import { ErrorNotice } from "@/ui/notice";
import { Select } from "@/ui/select";
import { suitesQuery, validationKeys } from "./queries";

interface Props {
  open: boolean;
  onOpenChange: (open: boolean) => void;
}

export function NewSweep({ open, onOpenChange }: Props) {
  return (
    <Dialog
      open={open}
      onOpenChange={onOpenChange}
      title="New sweep"
      about="Runs a suite over nodes by schedule."
    >
      <Form done={() => onOpenChange(false)} />
    </Dialog>
  );
}

const names = (text: string) => text.split(/[\s,]+/).filter(Boolean);

function Form({ done }: { done: () => void }) {
  const suites = useQuery(suitesQuery());
  const [name, setName] = useState("nightly");
  const [chosen, setSuite] = useState<string>();
  const [schedule, setSchedule] = useState("0 3 * * *");
  const [nodes, setNodes] = useState("");
  const [headers] = useState(idempotencyKey);
  const queryClient = useQueryClient();
  const suite = chosen ?? suites.data?.[0]?.name;
  const make = useMutation({
    mutationFn: (suiteName: string) =>
      unwrap(
        client.POST("/v1/sweeps", {
          headers,
          body: {
            name: name.trim(),
            suite: suiteName,
            schedule: schedule.trim() || null,
            nodes: names(nodes).length > 0 ? names(nodes) : null,
            enabled: true,
          },
        }),
      ),
    onSuccess: () => {
      void queryClient.invalidateQueries({ queryKey: validationKeys.sweeps });
      done();
    },
  });

  function submit(event: FormEvent) {
    event.preventDefault();
    if (suite) make.mutate(suite);
  }

  return (
    <form onSubmit={submit} className="flex flex-col gap-4">
      <Field label="Name">
        {(id) => <Input id={id} required value={name} onChange={(event) => setName(event.target.value)} />}
      </Field>
      {suite && (
        <div>
          <Select
            label="Suite"
            value={suite}
            onChange={setSuite}
            groups={[
              { options: (suites.data ?? []).map((s) => ({ value: s.name, label: `Suite ${s.name}` })) },
            ]}
          />
        </div>
      )}
      <Field label="Schedule" hint="Cron, or “every 3600s”. Empty: by hand only.">
        {(id) => (
          <Input
            id={id}
            value={schedule}
            onChange={(event) => setSchedule(event.target.value)}
            className="font-mono"
          />
        )}
      </Field>
      <Field
        label="Nodes"
        hint="Names, separated by spaces or commas. Empty: all nodes, also those that enrol later."
      >
        {(id) => (
          <Input
            id={id}
            value={nodes}
            onChange={(event) => setNodes(event.target.value)}
            className="font-mono"
          />
        )}
      </Field>
      {suites.isError && <ErrorNotice error={suites.error} />}
      {make.isError && <ErrorNotice error={make.error} />}
      <div className="flex justify-end gap-2">
        <Button onClick={done}>Cancel</Button>
        <Button type="submit" kind="primary" busy={make.isPending} disabled={!suite || !name.trim()}>
          Make sweep
        </Button>
      </div>
    </form>
  );
}
