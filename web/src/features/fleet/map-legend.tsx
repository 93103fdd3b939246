import type { Signal } from "@/api/types";
import { useDark } from "@/app/theme";
import { scaleGradient } from "@/charts/color";
import { namedValue } from "@/features/signals/named";
import { cx } from "@/lib/cx";
import { integer, quantity, unitOf } from "@/lib/format";
import { health, healthUrgency, severity } from "@/lib/status-styles";
import { Glyph } from "@/ui/glyph";
import { findingSeverities, type MapHighlight } from "./map-model";
import type { Snapshot } from "./queries";

interface Props {
  signal: Signal | null;
  snapshot: Snapshot;
  counts: Map<MapHighlight, number>;
  highlight: MapHighlight | undefined;
  onHighlight: (value: MapHighlight | undefined) => void;
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

const entries = [
  ...healthUrgency.map((value) => ({
    value,
    style: health[value],
    text: health[value].label.toLowerCase(),
    about: health[value].about,
  })),
  ...findingSeverities.map((value) => ({
    value,
    style: severity[value],
    text: `with a ${value} finding`,
    about: `The device itself has an active finding. ${severity[value].about}`,
  })),
];

/** The states on the map, and what is found about devices, with counts. A click shows one of them at full opacity. */
function StateLegend({ counts, highlight, onHighlight }: Omit<Props, "signal" | "snapshot">) {
  return (
    <ul className="flex flex-wrap gap-x-2 gap-y-1 text-ink-2 text-xs">
      {entries
        .filter(({ value }) => (counts.get(value) ?? 0) > 0 || value === highlight)
        .map(({ value, style, text, about }) => (
          <li key={value}>
            <button
              type="button"
              title={about}
              aria-pressed={value === highlight}
              onClick={() => onHighlight(value === highlight ? undefined : value)}
              className={cx(
                "inline-flex items-center gap-1.5 rounded-md border px-2 py-0.5 hover:bg-hover",
                value === highlight ? "border-accent bg-accent-soft text-ink" : "border-transparent",
              )}
            >
              <Glyph name={style.glyph} tone={style.tone} size={11} />
              <span className="num font-semibold text-ink">{integer(counts.get(value) ?? 0)}</span>
              {text}
            </button>
          </li>
        ))}
    </ul>
  );
}
