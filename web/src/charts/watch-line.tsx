/** A time line of incidents up to now. */
import { Link } from "@tanstack/react-router";
import type { Incident } from "@/api/types";
import { cx } from "@/lib/cx";
import { age } from "@/lib/format";
import { severity, statusStyleOf, type Tone } from "@/lib/status-styles";
import { clock } from "@/lib/time";
import { placeSpans, type Span } from "./strip";
import { TimeAxis } from "./time-axis";

const fill: Record<Tone, string> = {
  healthy: "bg-healthy",
  suspect: "bg-suspect",
  draining: "bg-draining",
  quarantined: "bg-quarantined",
  validating: "bg-validating",
  unknown: "bg-unknown",
};

const LANE = 14;
/** Severity is shown by height and by color. */
const tall: Record<string, number> = { critical: 13, warning: 9, info: 5 };

interface IncidentSpan extends Span {
  incident: Incident;
}

interface Props {
  incidents: Incident[];
  start: number;
  end: number;
  label: string;
  /** Times with a tick of their own, such as generations of a job. */
  points?: { at: number; label: string }[];
}

export function WatchLine({ incidents, start, end, label, points = [] }: Props) {
  const spans: IncidentSpan[] = incidents.map((incident) => ({
    id: incident.id,
    from: incident.opened_at,
    to: incident.recovered_at ?? incident.closed_at,
    incident,
  }));
  const placed = placeSpans(spans, start, end, 0.003);
  const lanes = Math.min(
    4,
    placed.reduce((most, p) => Math.max(most, p.lane + 1), 1),
  );
  const height = 6 + lanes * LANE;
  const place = (t: number) => `${((t - start) / (end - start)) * 100}%`;
  return (
    <section aria-label={label}>
      <div className="relative" style={{ height }}>
        <div className="absolute inset-x-0 bottom-0 h-px bg-line-strong" />
        {/* A late report may be outside the line. */}
        {points
          .filter((point) => point.at >= start && point.at <= end)
          .map((point) => (
            <span
              key={`${point.at}${point.label}`}
              title={`${point.label} at ${clock(point.at)}`}
              className="absolute top-full h-1 w-0.5 -translate-x-1/2 bg-accent"
              style={{ left: place(point.at) }}
            />
          ))}
        {placed.map(({ span, left, width, lane }) => {
          const look = statusStyleOf(severity, span.incident.severity);
          const lasted = (span.to ?? end) - span.from;
          return (
            <Link
              key={span.id}
              to="/incidents/$id"
              params={{ id: span.id }}
              title={`${span.incident.title}\n${clock(span.from)}, ${span.to === null ? "still open" : `for ${age(lasted)}`}`}
              aria-label={`${look.label}: ${span.incident.title}`}
              className={cx("absolute min-w-[4px] rounded-[1.5px] hover:brightness-125", fill[look.tone])}
              style={{
                left: `${left * 100}%`,
                width: `${width * 100}%`,
                height: tall[span.incident.severity] ?? 6,
                bottom: 1 + Math.min(lane, 3) * LANE,
              }}
            />
          );
        })}
      </div>
      <TimeAxis start={start} end={end} last="now" />
    </section>
  );
}
