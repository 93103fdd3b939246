/** The form of a simulation. */
import { type FormEvent, useState } from "react";
import type { SimulationQuestion } from "@/api/types";
import { Button } from "@/ui/button";
import { Field, Input } from "@/ui/field";
import { Segmented } from "@/ui/segmented";
import { type Fields, type Numbers, type PolicyFields, question, shapeProblem, type Vary } from "./model";

interface Props {
  initial: Fields;
  busy: boolean;
  onAsk: (question: SimulationQuestion) => void;
}

interface Entry {
  name: keyof Numbers;
  label: string;
  min: number;
  max: number;
  whole?: boolean;
  hint?: string;
}

const JOB: Entry[] = [
  { name: "nodes", label: "Nodes", min: 1, max: 100_000, whole: true },
  { name: "gpus", label: "GPUs per node", min: 1, max: 1024, whole: true },
  { name: "dp", label: "Replicas (dp)", min: 1, max: 100_000, whole: true },
  { name: "pp", label: "Stages (pp)", min: 1, max: 10_000, whole: true },
  { name: "tp", label: "Tensor (tp)", min: 1, max: 1024, whole: true },
  { name: "microBatches", label: "Micro-batches", min: 1, max: 100_000, whole: true },
  { name: "iteration", label: "Step time (s)", min: 0.001, max: 86_400 },
];
const FAILURES: Entry[] = [
  { name: "mtbfHours", label: "Node MTBF (hours)", min: 0.01, max: 1e8 },
  { name: "repairHours", label: "Repair time (hours)", min: 0, max: 87_600 },
  { name: "spares", label: "Spare nodes", min: 0, max: 100_000, whole: true },
];
const RUN: Entry[] = [
  { name: "days", label: "Days", min: 0.001, max: 3650 },
  { name: "seeds", label: "Runs", min: 1, max: 10_000, whole: true },
];

const variables: { value: Vary; label: string; title: string }[] = [
  { value: "spares", label: "Spares", title: "Vary the number of spare nodes" },
  { value: "mtbf_hours", label: "MTBF", title: "Vary the MTBF of nodes" },
  { value: "nothing", label: "Nothing", title: "Vary nothing and show results over time" },
];

export function SimulationForm({ initial, busy, onAsk }: Props) {
  const [fields, setFields] = useState(initial);
  const { numbers, policies, vary } = fields;
  const wrong = shapeProblem(numbers);
  const none = !policies.some((policy) => policy.chosen);

  function submit(event: FormEvent) {
    event.preventDefault();
    if (wrong === null && !none) onAsk(question(fields));
  }

  function change(policy: PolicyFields, changed: Partial<PolicyFields>) {
    setFields({
      ...fields,
      policies: policies.map((one) => (one.name === policy.name ? { ...one, ...changed } : one)),
    });
  }

  const group = (entries: Entry[]) => (
    <div className="grid grid-cols-2 gap-x-4 gap-y-3 sm:grid-cols-3 xl:grid-cols-2">
      {entries.map((entry) => (
        <Amount
          key={entry.name}
          entry={entry}
          value={numbers[entry.name]}
          onChange={(value) => setFields({ ...fields, numbers: { ...numbers, [entry.name]: value } })}
        />
      ))}
    </div>
  );

  return (
    <form onSubmit={submit} className="flex flex-col gap-4">
      <Group name="Job">
        {group(JOB)}
        {wrong !== null && (
          <p role="alert" className="text-quarantined text-xs">
            {wrong}
          </p>
        )}
      </Group>
      <Group name="Failures">{group(FAILURES)}</Group>
      <Group name="Simulation">{group(RUN)}</Group>
      <Group name="Policies, with save and restart times in seconds">
        {policies.map((policy) => (
          <PolicyRow key={policy.name} policy={policy} onChange={(changed) => change(policy, changed)} />
        ))}
      </Group>
      <div className="flex flex-col items-start gap-1">
        <span className="font-medium text-ink text-sm">Vary</span>
        <Segmented
          label="Vary"
          value={vary}
          onChange={(next) => setFields({ ...fields, vary: next })}
          options={variables}
        />
      </div>
      <div className="flex justify-end">
        <Button type="submit" kind="primary" busy={busy} disabled={wrong !== null || none}>
          Simulate
        </Button>
      </div>
    </form>
  );
}

function Group({ name, children }: { name: string; children: React.ReactNode }) {
  return (
    <fieldset className="flex min-w-0 flex-col gap-2">
      <legend className="mb-1.5 text-ink-3 text-xs">{name}</legend>
      {children}
    </fieldset>
  );
}

interface AmountProps {
  entry: Entry;
  value: string;
  onChange: (value: string) => void;
}

function Amount({ entry, value, onChange }: AmountProps) {
  return (
    <Field label={entry.label} hint={entry.hint}>
      {(id) => (
        <Input
          id={id}
          type="number"
          inputMode={entry.whole ? "numeric" : "decimal"}
          min={entry.min}
          max={entry.max}
          step={entry.whole ? 1 : "any"}
          required
          value={value}
          onChange={(event) => onChange(event.target.value)}
        />
      )}
    </Field>
  );
}

interface RowProps {
  policy: PolicyFields;
  onChange: (changed: Partial<PolicyFields>) => void;
}

function PolicyRow({ policy, onChange }: RowProps) {
  const seconds = (name: "save" | "restart", about: string) => (
    <div className="w-18 shrink-0">
      <Input
        type="number"
        inputMode="decimal"
        min={0}
        max={1e7}
        step="any"
        required={policy.chosen}
        disabled={!policy.chosen}
        aria-label={`Time of a ${about} in seconds, ${policy.description}`}
        title={`Time of a ${about} in seconds`}
        value={policy[name]}
        onChange={(event) => onChange({ [name]: event.target.value })}
        className="disabled:opacity-50"
      />
    </div>
  );
  return (
    <div className="flex items-center gap-2">
      <label className="flex min-w-0 flex-1 items-center gap-2 text-sm">
        <input
          type="checkbox"
          checked={policy.chosen}
          onChange={(event) => onChange({ chosen: event.target.checked })}
        />
        <span className="first-letter:uppercase">{policy.description}</span>
      </label>
      {seconds("save", "save")}
      {seconds("restart", "restart")}
    </div>
  );
}
