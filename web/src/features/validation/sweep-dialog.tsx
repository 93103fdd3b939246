import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, type InputHTMLAttributes, type ReactNode, useState } from "react";
import { client, idempotencyKey, unwrap } from "@/api/client";
import type { Suite, Sweep } from "@/api/types";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Field, Input } from "@/ui/field";
import { ErrorNotice } from "@/ui/notice";
import { Select } from "@/ui/select";
import { Cohorts } from "./cohorts";
import { suitesQuery, validationKeys } from "./queries";
import { emptySweep, type SweepFields, sweepBody, sweepChange, sweepFields } from "./sweep-form";

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
      about={sweep ? "A run in progress keeps its tasks." : "Runs a suite on nodes by schedule."}
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
    <form onSubmit={submit} className="flex flex-col gap-4">
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
      {line("Schedule", "schedule", "Cron in UTC, or “every 3600s”. Leave empty for no schedule.", {
        className: "font-mono",
      })}
      {line(
        "Nodes",
        "nodes",
        "Names, separated by spaces or commas. Leave empty for all nodes, including new ones.",
        { className: "font-mono" },
      )}
      {line("Cohort", "cohort", "Only nodes of this cohort. Leave empty for all.", { list: "cohorts" })}
      <Cohorts id="cohorts" />
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
      {suites.isError && <ErrorNotice error={suites.error} />}
      {make.isError && <ErrorNotice error={make.error} />}
      <div className="flex justify-end gap-2">
        <Button onClick={done}>Cancel</Button>
        <Button type="submit" kind="primary" busy={make.isPending} disabled={!suite || !fields.name.trim()}>
          {opened ? "Save sweep" : "Create sweep"}
        </Button>
      </div>
    </form>
  );
}

type MoreOfInput = InputHTMLAttributes<HTMLInputElement>;

interface PartProps {
  suites: Suite[];
  suite: Suite;
  part: readonly string[];
  onSuite: (name: string) => void;
  onPart: (benchmarks: string[]) => void;
}

function SuitePart({ suites, suite, part, onSuite, onPart }: PartProps) {
  const toggle = (name: string) =>
    onPart(part.includes(name) ? part.filter((one) => one !== name) : [...part, name]);
  return (
    <div className="flex flex-col items-start gap-2">
      <Select
        label="Suite"
        value={suite.name}
        onChange={onSuite}
        groups={[{ options: suites.map((s) => ({ value: s.name, label: `Suite ${s.name}` })) }]}
      />
      <details className="w-full text-sm">
        <summary className="w-max cursor-pointer text-ink-2 text-xs hover:text-ink">
          {part.length === 0 ? "The whole suite" : `${part.length} of ${suite.benchmarks.length} benchmarks`}
        </summary>
        <fieldset className="mt-1.5 grid grid-cols-2 gap-x-4 gap-y-1">
          <legend className="sr-only">Benchmarks</legend>
          {suite.benchmarks.map(({ name, catches }) => (
            <label key={name} title={catches} className="flex items-center gap-2 font-mono text-xs">
              <input type="checkbox" checked={part.includes(name)} onChange={() => toggle(name)} />
              {name}
            </label>
          ))}
        </fieldset>
      </details>
    </div>
  );
}
