import { useQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";
import type { Overview } from "@/api/types";
import { WatchLine } from "@/charts/watch-line";
import { recentIncidentsQuery } from "@/features/incidents/queries";
import { age, integer, plural } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { useNow } from "@/lib/time";
import { Glyph } from "@/ui/glyph";

const DAY = 86_400;

/** The state of the fleet in one sentence, and the incidents of the last day. */
export function Headline({ overview, proposals }: { overview: Overview; proposals: number | null }) {
  const incidents = useQuery({ ...recentIncidentsQuery(), refetchInterval: usePolling(30_000) });
  const now = useNow();
  const active = overview.active_incidents.length;
  const known = incidents.data ?? [];
  const last = known.find((incident) => incident.recovered_at !== null || incident.closed_at !== null);
  const lastEnd = last ? (last.recovered_at ?? last.closed_at) : null;
  return (
    <section aria-labelledby="headline" className="rounded-lg border border-line bg-surface px-5 pt-5 pb-3">
      <div className="flex flex-wrap items-start justify-between gap-x-8 gap-y-3">
        <div>
          <h2
            id="headline"
            className="flex items-center gap-3 font-semibold text-3xl text-ink tracking-[-0.025em]"
          >
            <Glyph
              name={active > 0 ? "bang" : overview.data_age_seconds === null ? "question" : "check"}
              tone={active > 0 ? "quarantined" : overview.data_age_seconds === null ? "unknown" : "healthy"}
              size={24}
            />
            {sentence(overview)}
          </h2>
          <p className="mt-1 text-ink-2">
            {subline(overview, proposals, lastEnd === null ? null : now - lastEnd)}
          </p>
        </div>
        <Counts overview={overview} now={now} />
      </div>
      <div className="mt-4">
        <WatchLine incidents={known} start={now - DAY} end={now} label="Incidents of the last 24 hours" />
      </div>
    </section>
  );
}

function sentence({ active_incidents: active, data_age_seconds, nodes }: Overview): string {
  if (active.length > 0) return `${plural(active.length, "active incident")}.`;
  if (Object.values(nodes).reduce((a, b) => a + b, 0) === 0) return "No nodes yet.";
  if (data_age_seconds === null) return "No measurements received.";
  return "No active incidents.";
}

/** "Action required: 2 incidents and 1 proposal." */
function waitingText(incidents: number, proposals: number | null): string {
  const parts = [
    incidents > 0 ? plural(incidents, "incident") : null,
    proposals ? plural(proposals, "proposal") : null,
  ].filter((part) => part !== null);
  // Unknown proposals are not the same as no proposals.
  if (parts.length === 0) return proposals === null ? "" : "No action required.";
  return `Action required: ${parts.join(" and ")}.`;
}

function subline(overview: Overview, proposals: number | null, quiet: number | null): ReactNode {
  const { active_incidents: active, needs_operator, nodes } = overview;
  if (Object.values(nodes).reduce((a, b) => a + b, 0) === 0)
    return (
      <>
        Start a node daemon with <code className="font-mono text-sm">mainstay node</code>. Its measurements
        appear here.
      </>
    );
  const action = waitingText(needs_operator.length, proposals);
  if (active.length > 0) return action;
  return quiet === null
    ? `No incidents recorded. ${action}`
    : `The last incident ended ${age(quiet)} ago. ${action}`;
}

function Counts({ overview, now }: { overview: Overview; now: number }) {
  const nodes = Object.values(overview.nodes).reduce((a, b) => a + b, 0);
  const running = overview.jobs.filter((job) => job.state === "running" || job.state === "recovering").length;
  const dataAge =
    overview.data_age_seconds === null ? null : overview.data_age_seconds + (now - overview.now);
  const counts: [string, string, boolean][] = [
    [integer(nodes), nodes === 1 ? "node" : "nodes", false],
    [integer(overview.devices), overview.devices === 1 ? "device" : "devices", false],
    [integer(running), running === 1 ? "job running" : "jobs running", false],
    [dataAge === null ? "none" : age(dataAge), "data age", dataAge === null || dataAge > 15],
  ];
  return (
    <dl className="flex gap-7">
      {counts.map(([value, name, alarming]) => (
        <div key={name} className="flex flex-col-reverse">
          <dt className="text-ink-3 text-xs">{name}</dt>
          <dd
            className={`num font-semibold text-xl tracking-[-0.02em] ${alarming ? "text-suspect" : "text-ink"}`}
          >
            {value}
          </dd>
        </div>
      ))}
    </dl>
  );
}
