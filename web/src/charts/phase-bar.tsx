/** Seconds by phase as one bar, on a scale shared by the alternatives beside it. */
import { cx } from "@/lib/cx";
import { duration, humanize } from "@/lib/format";

// In the order of a recovery; phases that only one strategy has follow.
const ORDER = [
  "detect",
  "decide",
  "fence",
  "spawn",
  "regroup",
  "fetch",
  "decode",
  "load",
  "restore",
  "first_step",
  "verify",
];
const HUES = 7;

export function phaseOrder(names: Iterable<string>): string[] {
  const rank = (name: string) => {
    const at = ORDER.indexOf(name);
    return at < 0 ? ORDER.length : at;
  };
  return [...new Set(names)].sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
}

function style(index: number) {
  return { background: `var(--phase-${(index % HUES) + 1})`, striped: index >= HUES };
}

interface BarProps {
  parts: Record<string, number>;
  phases: string[];
  /** Seconds of a full-width bar. */
  scale: number;
  label: string;
  thin?: boolean;
}

export function PhaseBar({ parts, phases, scale, label, thin = false }: BarProps) {
  // Growth factors are ratios of the sum: with a sum below 1 the bar would not be full.
  const total = Object.values(parts).reduce((sum, s) => sum + s, 0);
  return (
    <div
      role="img"
      aria-label={`${label}: ${duration(total)}; ${phases
        .filter((p) => parts[p])
        .map((p) => `${humanize(p)} ${duration(parts[p])}`)
        .join(", ")}`}
      className={cx("flex overflow-hidden rounded-[3px]", thin ? "h-1.5" : "h-3.5")}
      style={{ width: `${Math.max(0.8, (total / scale) * 100)}%` }}
    >
      {phases.map((phase, index) => {
        const seconds = parts[phase] ?? 0;
        if (seconds <= 0) return null;
        const { background, striped } = style(index);
        return (
          <span
            key={phase}
            title={`${humanize(phase)}: ${duration(seconds)}`}
            className={cx("h-full border-surface border-r last:border-r-0", striped && "bar-stripes")}
            style={{ backgroundColor: background, flexGrow: seconds / total, flexBasis: 0 }}
          />
        );
      })}
    </div>
  );
}

export function PhaseLegend({ phases }: { phases: string[] }) {
  return (
    <ul className="flex flex-wrap gap-x-4 gap-y-1 text-ink-2 text-xs">
      {phases.map((phase, index) => {
        const { background, striped } = style(index);
        return (
          <li key={phase} className="inline-flex items-center gap-1.5">
            <span
              className={cx("size-2.5 rounded-[2px]", striped && "bar-stripes")}
              style={{ backgroundColor: background }}
            />
            {humanize(phase)}
          </li>
        );
      })}
    </ul>
  );
}
