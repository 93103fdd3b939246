/** What a sweep selects by checkboxes: a part of its suite, and the nodes of racks, cohorts, and states. */
import { useInfiniteQuery } from "@tanstack/react-query";
import { nodesQuery } from "@/features/nodes/queries";
import { integer } from "@/lib/format";
import { health, statusStyleOf } from "@/lib/status-styles";
import type { SweepFields } from "./sweep-form";

interface Option {
  value: string;
  label?: string;
  title?: string;
  count?: number;
}

interface Props {
  legend: string;
  /** What no choice stands for, such as "The whole suite". */
  all: string;
  options: readonly Option[];
  chosen: readonly string[];
  onChange: (chosen: string[]) => void;
}

export function Choices({ legend, all, options, chosen, onChange }: Props) {
  const known = options.map(({ value }) => value);
  const gone = chosen.filter((value) => !known.includes(value)).map((value) => ({ value, count: 0 }));
  const toggle = (value: string) =>
    onChange(chosen.includes(value) ? chosen.filter((one) => one !== value) : [...chosen, value]);
  return (
    <details className="w-full text-sm">
      <summary className="w-max max-w-full cursor-pointer text-ink-2 text-xs hover:text-ink">
        {chosen.length === 0
          ? all
          : `${chosen.length} of ${known.length + gone.length} ${legend.toLowerCase()}`}
      </summary>
      <fieldset className="mt-1.5 grid max-h-44 grid-cols-2 gap-x-4 gap-y-1 overflow-auto">
        <legend className="sr-only">{legend}</legend>
        {[...options, ...gone].map(({ value, label, title, count }: Option) => (
          <label key={value} title={title} className="flex items-center gap-2 font-mono text-xs">
            <input type="checkbox" checked={chosen.includes(value)} onChange={() => toggle(value)} />
            {label ?? value} {count !== undefined && <span className="text-ink-3">{integer(count)}</span>}
          </label>
        ))}
      </fieldset>
    </details>
  );
}

interface NodesProps {
  fields: SweepFields;
  set: (change: Partial<SweepFields>) => void;
}

export function NodeChoices({ fields, set }: NodesProps) {
  const nodes = useInfiniteQuery(nodesQuery({ facets: true }));
  const facets = nodes.data?.pages[0]?.facets;
  const states = (facets?.state ?? []).map((one) => ({
    ...one,
    label: statusStyleOf(health, one.value).label,
  }));
  const groups = [
    ["racks", facets?.rack],
    ["cohorts", facets?.cohort],
    ["states", states],
  ] as const;
  return (
    <div className="flex flex-col gap-1.5">
      {groups.map(([name, options]) => (
        <Choices
          key={name}
          legend={name}
          all={`All ${name}`}
          options={options ?? []}
          chosen={fields[name]}
          onChange={(chosen) => set({ [name]: chosen })}
        />
      ))}
    </div>
  );
}
