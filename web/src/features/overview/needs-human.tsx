import { Link } from "@tanstack/react-router";
import type { Incident } from "@/api/types";
import { summaryOf, titleOf } from "@/features/incidents/life";
import { lookOf, severity } from "@/lib/states";
import { Age } from "@/ui/age";
import { Glyph } from "@/ui/glyph";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";

export function NeedsHuman({ incidents }: { incidents: Incident[] }) {
  return (
    <Panel title="Needs a human" flush>
      {incidents.length === 0 ? (
        <div className="px-4 pb-3">
          <Empty title="Nobody is needed.">
            Incidents without a feasible plan, and verdicts that only a person may lift, wait here.
          </Empty>
        </div>
      ) : (
        <ul>
          {incidents.map((incident) => {
            const look = lookOf(severity, incident.severity);
            return (
              <li
                key={incident.id}
                className="flex items-start gap-2.5 border-line border-t px-4 py-2.5 text-sm"
              >
                <span className="mt-1" title={look.label}>
                  <Glyph name={look.glyph} tone={look.tone} />
                </span>
                <div className="min-w-0 flex-1">
                  <Link
                    to="/incidents/$id"
                    params={{ id: incident.id }}
                    className="font-medium text-ink hover:underline"
                  >
                    {titleOf(incident)}
                  </Link>
                  <p className="text-ink-2">{summaryOf(incident)}</p>
                </div>
                <span className="text-ink-3 text-xs leading-5">
                  <Age at={incident.opened_at} />
                </span>
              </li>
            );
          })}
        </ul>
      )}
    </Panel>
  );
}
