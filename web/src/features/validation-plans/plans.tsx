/** The form of a validation plan. A plan starts no validations. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { client, idempotencyKey, unwrap } from "@/api/client";
import { suitesQuery } from "@/features/validation/queries";
import { Button } from "@/ui/button";
import { Field, Input, TextArea } from "@/ui/field";
import { Empty, ErrorNotice } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { Select } from "@/ui/select";
import { type PlanFields, planBody } from "./model";
import { PlanView } from "./plan-view";
import { planKeys, planQuery } from "./queries";

interface Props {
  id: string | undefined;
  onPlan: (id: string) => void;
}

export function Plans({ id, onPlan }: Props) {
  return (
    <div className="grid items-start gap-4 xl:grid-cols-[minmax(0,1fr)_minmax(0,3fr)]">
      <PlanForm onPlan={onPlan} />
      {id === undefined ? (
        <Panel title="Plan">
          <Empty title="No plan yet.">
            Enter nodes and a job length. The plan compares the risk reduction of each benchmark with its
            cost, from the history of the nodes. Without enough history it uses the whole suite.
          </Empty>
        </Panel>
      ) : (
        <Shown id={id} />
      )}
    </div>
  );
}

function Shown({ id }: { id: string }) {
  const query = useQuery(planQuery(id));
  return (
    <div className="flex min-w-0 flex-col gap-4">
      <QueryView query={query}>{(plan) => <PlanView plan={plan} />}</QueryView>
    </div>
  );
}

function PlanForm({ onPlan }: { onPlan: (id: string) => void }) {
  const suites = useQuery(suitesQuery());
  const queryClient = useQueryClient();
  const [fields, setFields] = useState<PlanFields>({
    nodes: "",
    jobHours: "24",
    targetPercent: "10",
    worthNodeHours: "",
    suite: "standard",
    uniform: false,
  });
  const set = (change: Partial<PlanFields>) => setFields((old) => ({ ...old, ...change }));
  const body = planBody(fields);
  const make = useMutation({
    mutationFn: () => unwrap(client.POST("/v1/validation-plans", { body, headers: idempotencyKey() })),
    onSuccess: (plan) => {
      queryClient.setQueryData(planKeys.one(plan.id), plan);
      onPlan(plan.id);
    },
  });

  function submit(event: FormEvent) {
    event.preventDefault();
    if (body.nodes.length > 0) make.mutate();
  }

  function amount(
    label: string,
    name: Exclude<keyof PlanFields, "uniform">,
    hint: string,
    max: number,
    required = true,
  ) {
    return (
      <Field label={label} hint={hint}>
        {(id) => (
          <Input
            id={id}
            type="number"
            inputMode="decimal"
            min={0}
            max={max}
            step="any"
            required={required}
            value={fields[name]}
            onChange={(event) => set({ [name]: event.target.value })}
          />
        )}
      </Field>
    );
  }

  return (
    <Panel title="Validation plan" about="a plan starts no validations">
      <form onSubmit={submit} className="flex flex-col gap-4">
        <Field label="Nodes" hint="Names, separated by spaces, commas, or lines.">
          {(id) => (
            <TextArea
              id={id}
              required
              value={fields.nodes}
              onChange={(event) => set({ nodes: event.target.value })}
              className="font-mono"
            />
          )}
        </Field>
        {amount("Job length (hours)", "jobHours", "Expected length of the job.", 8760)}
        {amount("Accepted risk (%)", "targetPercent", "Probability of an incident during the job.", 100)}
        {amount(
          "Value (node-hours)",
          "worthNodeHours",
          "Value of an averted incident. Leave empty for no cost limit.",
          1e6,
          false,
        )}
        <div>
          <Select
            label="Candidates"
            value={fields.suite}
            onChange={(suite) => set({ suite })}
            groups={[
              {
                options: (suites.data ?? [{ name: fields.suite }]).map((s) => ({
                  value: s.name,
                  label: `Suite ${s.name}`,
                })),
              },
            ]}
          />
        </div>
        <label className="flex items-center gap-2 text-sm">
          <input
            type="checkbox"
            checked={fields.uniform}
            onChange={(event) => set({ uniform: event.target.checked })}
          />
          Same benchmarks on all nodes
        </label>
        {make.isError && <ErrorNotice error={make.error} />}
        <div className="flex justify-end">
          <Button type="submit" kind="primary" busy={make.isPending} disabled={body.nodes.length === 0}>
            Create plan
          </Button>
        </div>
      </form>
    </Panel>
  );
}
