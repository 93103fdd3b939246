import { Link } from "@tanstack/react-router";
import type { Incident } from "@/api/types";
import { LifecycleBar } from "@/features/incidents/lifecycle-bar";
import { incidentDuration, subject, summaryOf, titleOf } from "@/features/incidents/lifecycle-model";
import { cx } from "@/lib/cx";
import { age } from "@/lib/format";
import { severity, statusStyleOf } from "@/lib/status-styles";
import { useNow } from "@/lib/time";
import { Glyph } from "@/ui/glyph";
import { StatePill } from "@/ui/state-pill";

/** The active incidents and the progress of their recovery. */
export function ActiveIncidents({ incidents }: { incidents: Incident[] }) {
  const now = useNow();
  return (
    <section aria-label="Active incidents" className="flex flex-col gap-3">
      {incidents.map((incident) => (
        <article
          key={incident.id}
          className="relative grid gap-x-8 gap-y-4 overflow-hidden rounded-lg border border-line bg-surface py-4 pr-5 pl-6 lg:grid-cols-[minmax(0,5fr)_minmax(0,6fr)]"
        >
          <span
            aria-hidden="true"
            className={cx(
              "absolute inset-y-0 left-0 w-1.5",
              incident.severity === "critical" ? "bar-stripes bg-quarantined" : "bg-suspect",
            )}
          />
          <div className="min-w-0">
            <div className="flex items-center gap-2 text-xs">
              <StatePill look={statusStyleOf(severity, incident.severity)} />
              {incident.needs_operator && (
                <span className="inline-flex items-center gap-1 font-medium text-draining">
                  <Glyph name="down" size={10} /> needs an operator
                </span>
              )}
              <span className="num text-ink-3">active for {age(incidentDuration(incident, now))}</span>
            </div>
            <h3 className="mt-1 font-semibold text-lg leading-6">
              <Link to="/incidents/$id" params={{ id: incident.id }} className="hover:underline">
                {titleOf(incident)}
              </Link>
            </h3>
            {summaryOf(incident) && <p className="line-clamp-3 text-ink-2 text-sm">{summaryOf(incident)}</p>}
            <p className="mt-0.5 text-ink-3 text-xs">{subject(incident)}</p>
          </div>
          <div className="self-center">
            <LifecycleBar incident={incident} />
          </div>
        </article>
      ))}
    </section>
  );
}
