/** Names and values, aligned: identity cards and protection facts. */
import type { ReactNode } from "react";
import { cx } from "@/lib/cx";

export interface Fact {
  name: string;
  value: ReactNode;
  mono?: boolean;
}

export function Facts({ facts, className }: { facts: Fact[]; className?: string }) {
  return (
    <dl className={cx("grid grid-cols-[max-content_minmax(0,1fr)] gap-x-5 gap-y-1.5 text-sm", className)}>
      {facts.map((fact) => (
        <div key={fact.name} className="contents">
          <dt className="text-ink-3">{fact.name}</dt>
          <dd className={cx("num min-w-0 break-words text-ink", fact.mono && "font-mono text-xs leading-5")}>
            {fact.value}
          </dd>
        </div>
      ))}
    </dl>
  );
}

/** One number that matters, with its name under it. */
export function Stat({ value, name, note }: { value: ReactNode; name: string; note?: ReactNode }) {
  return (
    <div className="min-w-0">
      <div className="num font-semibold text-2xl text-ink leading-8 tracking-[-0.02em]">{value}</div>
      <div className="text-ink-3 text-xs">
        {name}
        {note && <span> · {note}</span>}
      </div>
    </div>
  );
}
