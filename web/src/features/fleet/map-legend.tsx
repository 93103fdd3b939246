import type { HealthState, Signal } from "@/api/types";
import { useDark } from "@/app/theme";
import { scaleGradient } from "@/charts/color";
import { namedValue } from "@/features/signals/named";
import { cx } from "@/lib/cx";
import { integer, quantity, unitOf } from "@/lib/format";
import { health, healthUrgency } from "@/lib/status-styles";
import { Glyph } from "@/ui/glyph";
import type { Snapshot } from "./queries";

interface Props {
  signal: Signal | null;
  snapshot: Snapshot;
  counts: Map<HealthState, number>;
  highlight: HealthState | undefined;
  onHighlight: (state: HealthState | undefined) => void;
}

export function MapLegend({ signal, snapshot, ...states }: Props) {
  const dark = useDark();
  if (!signal) return <StateLegend {...states} />;
  const unit = unitOf(signal.name, signal.unit);
  const text = (value: number | null) =>
    namedValue(signal.name, value) ?? quantity(value, unit, signal.kind === "counter");
  return (
    <div className="num flex flex-wrap items-center gap-2 text-ink-2 text-xs">
      <span>{text(snapshot.low)}</span>
      <span
        role="img"
        aria-label={`Color scale from ${text(snapshot.low)} to ${text(snapshot.high)}`}
        className="h-2.5 w-44 rounded-[3px]"
        style={{ background: scaleGradient(dark) }}
      />
      <span>{text(snapshot.high)}</span>
      <span className="ml-3 inline-flex items-center gap-1.5">
        <span className="diagonal size-3 rounded-[2px]" /> no data
      </span>
      <span className="ml-3 text-ink-3">{signal.about}</span>
    </div>
  );
}

/** The states on the map with their counts. A click shows one of them at full opacity. */
function StateLegend({ counts, highlight, onHighlight }: Omit<Props, "signal" | "snapshot">) {
  return (
    <ul className="flex flex-wrap gap-x-2 gap-y-1 text-ink-2 text-xs">
      {healthUrgency
        .filter((state) => (counts.get(state) ?? 0) > 0 || state === highlight)
        .map((state) => (
          <li key={state}>
            <button
              type="button"
              title={health[state].about}
              aria-pressed={state === highlight}
              onClick={() => onHighlight(state === highlight ? undefined : state)}
              className={cx(
                "inline-flex items-center gap-1.5 rounded-md border px-2 py-0.5 hover:bg-hover",
                state === highlight ? "border-accent bg-accent-soft text-ink" : "border-transparent",
              )}
            >
              <Glyph name={health[state].glyph} tone={health[state].tone} size={11} />
              <span className="num font-semibold text-ink">{integer(counts.get(state))}</span>
              {health[state].label.toLowerCase()}
            </button>
          </li>
        ))}
    </ul>
  );
}
