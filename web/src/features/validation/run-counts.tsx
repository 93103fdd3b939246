import type { SweepRun } from "@/api/types";
import { cx } from "@/lib/cx";
import { statusStyleOf, verdict } from "@/lib/status-styles";
import { Glyph } from "@/ui/glyph";
import { runTotal, worstFirst } from "./labels";

/** The number of nodes by verdict, worst first. */
export function RunCounts({ counts }: { counts: SweepRun["counts"] }) {
  return (
    <p className="num flex flex-wrap items-center gap-x-4 gap-y-1">
      {worstFirst.map((kind) => {
        const look = statusStyleOf(verdict, kind);
        if (counts[kind] === 0) return null;
        return (
          <span key={kind} className="inline-flex items-center gap-1.5">
            <Glyph name={look.glyph} tone={look.tone} size={11} />
            {counts[kind]} {look.label.toLowerCase()}
          </span>
        );
      })}
      {counts.skipped > 0 && <span className="text-ink-2">{counts.skipped} skipped</span>}
      {counts.pending > 0 && (
        <span className="inline-flex items-center gap-1.5 text-ink-2">
          <Glyph name="half" tone="validating" size={11} />
          {counts.pending} pending
        </span>
      )}
    </p>
  );
}

/** The numbers as one bar; unknown has a texture. */
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
          className={cx("h-full", kind === "unknown" && "diagonal")}
          style={{
            width: `${((counts[kind] + (kind === "unknown" ? counts.skipped : 0)) / Math.max(1, total)) * 100}%`,
            backgroundColor: kind === "unknown" ? undefined : `var(--${statusStyleOf(verdict, kind).tone})`,
          }}
        />
      ))}
    </div>
  );
}
