import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, type InputHTMLAttributes, type ReactNode, useState } from "react";
import { client, idempotencyKey, unwrap } from "@/api/client";
import type { Suite, Sweep } from "@/api/types";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Field, Input } from "@/ui/field";
import { ErrorNotice } from "@/ui/notice";
import { Select } from "@/ui/select";
import { suitesQuery, validationKeys } from "./queries";
import { Choices, NodeChoices } from "./sweep-choices";
import { emptySweep, isComplete, type SweepFields, sweepBody, sweepChange, sweepFields } from "./sweep-form";
import { SweepPreview } from "./sweep-preview";
import { SweepTimes } from "./sweep-times";

interface Props {
  open: boolean;
  onOpenChange: (open: boolean) => void;
  /** The sweep to edit; without it, the dialog creates a new one. */
  sweep?: Sweep;
}

export function SweepDialog({ open, onOpenChange, sweep }: Props) {
  return (
    <Dialog
      open={open}
      onOpenChange={onOpenChange}
      title={sweep ? `Edit ${sweep.name}` : "New sweep"}
      about={sweep ? "A run in progress keeps its tasks." : "Runs a suite on many nodes."}
      className="lg:w-[58rem]"
    >
      <Form sweep={sweep} done={() => onOpenChange(false)} />
    </Dialog>
  );
}

function Form({ sweep, done }: { sweep: Sweep | undefined; done: () => void }) {
  const suites = useQuery(suitesQuery());
  const [opened] = useState(sweep); // polling refreshes the sweep; the form changes the version that it read
  const [fields, setFields] = useState(opened ? sweepFields(opened) : emptySweep);
  const [headers] = useState(idempotencyKey);
  const queryClient = useQueryClient();
  const suite = suites.data?.find((one) => one.name === fields.suite) ?? suites.data?.[0];
  const set = (change: Partial<SweepFields>) => setFields((old) => ({ ...old, ...change }));
  const make = useMutation({
    mutationFn: (suiteName: string) => {
      const reported = { ...fields, suite: suiteName };
      if (!opened) return unwrap(client.POST("/v1/sweeps", { headers, body: sweepBody(reported) }));
      const path = { id: opened.id };
      return unwrap(
        client.PATCH("/v1/sweeps/{id}", { params: { path }, body: sweepChange(opened, reported) }),
      );
    },
    onSuccess: () => {
      void queryClient.invalidateQueries({ queryKey: validationKeys.sweeps });
      done();
    },
  });

  function submit(event: FormEvent) {
    event.preventDefault();
    if (suite) make.mutate(suite.name);
  }

  function line(label: string, name: keyof SweepFields, hint?: ReactNode, more?: MoreOfInput) {
    return (
      <Field label={label} hint={hint}>
        {(id) => (
          <Input
            id={id}
            value={fields[name]}
            onChange={(event) => set({ [name]: event.target.value })}
            {...more}
          />
        )}
      </Field>
    );
  }

  const whole = (min: number, max?: number): MoreOfInput => ({
    type: "number",
    inputMode: "numeric",
    min,
    max,
    step: 1,
  });
  return (
    <form onSubmit={submit} className="grid items-start gap-x-6 gap-y-4 lg:grid-cols-[minmax(0,1fr)_22rem]">
      <div className="flex min-w-0 flex-col gap-4">
        {line("Name", "name", undefined, { required: true })}
        {suite && (
          <SuitePart
            suites={suites.data ?? []}
            suite={suite}
            part={fields.benchmarks}
            onSuite={(name) => set({ suite: name, benchmarks: [] })}
            onPart={(benchmarks) => set({ benchmarks })}
          />
        )}
        <SweepTimes when={fields.when} onWhen={(when) => set({ when })} line={line} />
        {line(
          "Nodes",
          "nodes",
          "Names, separated by spaces or commas. Leave empty for all nodes at the time of a run.",
          { className: "font-mono" },
        )}
        <NodeChoices fields={fields} set={set} />
        <div className="grid grid-cols-2 gap-x-4 gap-y-3">
          {line("Concurrent nodes", "atOnce", "Leave empty for no limit.", whole(1))}
          {line("Nodes per switch", "perSwitch", "Leave empty for no limit.", whole(1))}
          {line("Retries", "retries", "If a node measured nothing.", whole(0, 10))}
          {line("Remeasure", "remeasure", "Repeats of a failed measurement.", whole(0, 5))}
          {line("Timeout (minutes)", "timeoutMinutes", "Leave empty to use the suite's expected time.", {
            ...whole(1, 240),
            step: "any",
          })}
        </div>
      </div>
      <div className="top-0 flex min-w-0 flex-col gap-4 lg:sticky">
        {suite && isComplete(fields) && (
          <SweepPreview
            body={sweepBody({ ...fields, suite: suite.name, name: fields.name.trim() || "preview" })}
          />
        )}
        {suites.isError && <ErrorNotice error={suites.error} />}
        {make.isError && <ErrorNotice error={make.error} />}
        <div className="flex justify-end gap-2">
          <Button onClick={done}>Cancel</Button>
          <Button
            type="submit"
            kind="primary"
            busy={make.isPending}
            disabled={!suite || !fields.name.trim() || !isComplete(fields)}
          >
            {opened ? "Save sweep" : "Create sweep"}
          </Button>
        </div>
      </div>
    </form>
  );
}

export type MoreOfInput = InputHTMLAttributes<HTMLInputElement>;

interface PartProps {
  suites: Suite[];
  suite: Suite;
  part: readonly string[];
  onSuite: (name: string) => void;
  onPart: (benchmarks: string[]) => void;
}

function SuitePart({ suites, suite, part, onSuite, onPart }: PartProps) {
  return (
    <div className="flex flex-col items-start gap-2">
      <Select
        label="Suite"
        value={suite.name}
        onChange={onSuite}
        groups={[{ options: suites.map((s) => ({ value: s.name, label: `Suite ${s.name}` })) }]}
      />
      <Choices
        legend="Benchmarks"
        all="The whole suite"
        options={suite.benchmarks.map(({ name, catches }) => ({ value: name, title: catches }))}
        chosen={part}
        onChange={onPart}
      />
    </div>
  );
}
