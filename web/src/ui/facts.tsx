/** Names and values in two aligned columns. */
import type { ReactNode } from "react";
import { cx } from "@/lib/cx";
import type { TermName } from "@/lib/glossary";
import { Term } from "./term";

export interface Fact {
  name: string;
  value: ReactNode;
  mono?: boolean;
  term?: TermName;
}

export function Facts({ facts, className }: { facts: Fact[]; className?: string }) {
  return (
    <dl className={cx("grid grid-cols-[max-content_minmax(0,1fr)] gap-x-5 gap-y-1.5 text-sm", className)}>
      {facts.map((fact) => (
        <div key={fact.name} className="contents">
          <dt className="text-ink-3">{fact.term ? <Term name={fact.term}>{fact.name}</Term> : fact.name}</dt>
          <dd className={cx("num min-w-0 break-words text-ink", fact.mono && "font-mono text-xs leading-5")}>
            {fact.value}
          </dd>
        </div>
      ))}
    </dl>
  );
}

interface StatProps {
  value: ReactNode;
  name: string;
  note?: ReactNode;
  term?: TermName;
}

/** One number that matters, with its name under it. */
export function Stat({ value, name, note, term }: StatProps) {
  return (
    <div className="min-w-0">
      <div className="num font-semibold text-2xl text-ink leading-8 tracking-[-0.02em]">{value}</div>
      <div className="text-ink-3 text-xs">
        {term ? <Term name={term}>{name}</Term> : name}
        {note && <span> · {note}</span>}
      </div>
    </div>
  );
}
