/** What a job asks of each node: the fields that both forms of admission have. */
import { useQuery } from "@tanstack/react-query";
import { suitesQuery } from "@/features/validation/queries";
import { humanize } from "@/lib/format";
import { Field, Input } from "@/ui/field";
import { Select } from "@/ui/select";

const USUAL = "usual";

export interface Limits {
  gpus: string;
  suite: string;
}

export const noLimits: Limits = { gpus: "", suite: USUAL };

export const limitsOf = ({ gpus, suite }: Limits) => ({
  gpus_per_node: gpus.trim() === "" ? null : Number(gpus),
  suite: suite === USUAL ? null : suite,
});

export function LimitFields({ limits, onChange }: { limits: Limits; onChange: (limits: Limits) => void }) {
  const suites = useQuery(suitesQuery());
  const usual = { value: USUAL, label: "As configured" };
  const others = (suites.data ?? []).map(({ name }) => ({
    value: name,
    label: `At least ${humanize(name).toLowerCase()}`,
  }));
  return (
    <div className="flex flex-wrap items-end gap-4">
      <Field label="GPUs per node">
        {(id) => (
          <Input
            id={id}
            type="number"
            inputMode="numeric"
            min={1}
            max={1024}
            value={limits.gpus}
            onChange={(event) => onChange({ ...limits, gpus: event.target.value })}
            className="w-28"
          />
        )}
      </Field>
      <Select
        label="Minimum suite"
        value={limits.suite}
        onChange={(suite) => onChange({ ...limits, suite })}
        groups={[{ options: [usual, ...others] }]}
      />
    </div>
  );
}
