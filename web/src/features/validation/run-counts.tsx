import type { SweepRun } from "@/api/types";
import { cx } from "@/lib/cx";
import { lookOf, verdict } from "@/lib/states";
import { Glyph } from "@/ui/glyph";
import { runTotal, worstFirst } from "./words";

/** How many nodes of a run have which verdict, worst first, in words. */
export function RunCounts({ counts }: { counts: SweepRun["counts"] }) {
  return (
    <p className="num flex flex-wrap items-center gap-x-4 gap-y-1">
      {worstFirst.map((kind) => {
        const look = lookOf(verdict, kind);
        if (counts[kind] === 0) return null;
        return (
          <span key={kind} className="inline-flex items-center gap-1.5">
            <Glyph name={look.glyph} tone={look.tone} size={11} />
            {counts[kind]} {look.label.toLowerCase()}
          </span>
        );
      })}
      {counts.pending > 0 && (
        <span className="inline-flex items-center gap-1.5 text-ink-2">
          <Glyph name="half" tone="validating" size={11} />
          {counts.pending} pending
        </span>
      )}
    </p>
  );
}

/** The same as one bar; what is unknown has its texture. */
export function RunBar({ run }: { run: SweepRun }) {
  const total = runTotal(run);
  const { counts } = run;
  const done = total - counts.pending;
  return (
    <div
      role="progressbar"
      aria-label="Nodes that have ended"
      aria-valuemin={0}
      aria-valuemax={total}
      aria-valuenow={done}
      className="flex h-2.5 overflow-hidden rounded-full bg-sunken"
    >
      {worstFirst.map((kind) => (
        <span
          key={kind}
          className={cx("h-full", kind === "unknown" && "hatch")}
          style={{
            width: `${(counts[kind] / Math.max(1, total)) * 100}%`,
            backgroundColor: kind === "unknown" ? undefined : `var(--${lookOf(verdict, kind).tone})`,
          }}
        />
      ))}
    </div>
  );
}
