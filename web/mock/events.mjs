// Incidents as lists show them, and the events behind them.
import { uuid } from "./random.mjs";

export const brief = ({ timeline: _t, findings: _f, plan: _p, actions: _a, ...rest }) => rest;

export function makeEvents(incidents, jobs) {
  const events = incidents.flatMap((incident) =>
    incident.timeline
      .filter((e) =>
        [
          "process_exit",
          "plan_chosen",
          "action_started",
          "action_finished",
          "recovered",
          "verified",
        ].includes(e.kind),
      )
      .map((e) => ({
        id: uuid(e.time, `${e.kind}${incident.id}`),
        time: e.time,
        kind: e.kind,
        node: incident.node,
        device: null,
        job: incident.job,
        rank: incident.ranks[0] ?? null,
        generation: incident.plan?.generation ?? null,
        data:
          e.kind === "plan_chosen"
            ? { plan: incident.plan }
            : e.kind === "recovered"
              ? { ...e.data, seconds: incident.plan.actual_parts }
              : e.data,
        received_at: e.time + 0.1,
      })),
  );
  const started = jobs.map((job) => ({
    id: uuid(job.started_at, job.id),
    time: job.started_at,
    kind: "job_started",
    node: null,
    device: null,
    job: job.id,
    rank: null,
    generation: 0,
    data: {},
    received_at: job.started_at,
  }));
  return [...events, ...started].sort((a, b) => b.time - a.time);
}
