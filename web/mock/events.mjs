// Incidents as lists show them, and the events behind them.
import { uuid } from "./random.mjs";

export const brief = ({ timeline: _t, findings: _f, plan: _p, actions: _a, ...rest }) => rest;

export function makeEvents(incidents, jobs) {
  const events = incidents.flatMap((incident) =>
    incident.timeline
      .filter((e) =>
        [
          "process_exit",
          "recovery_planned",
          "action_started",
          "action_finished",
          "recovery_completed",
          "recovery_verified",
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
          e.kind === "recovery_planned"
            ? { plan: incident.plan }
            : e.kind === "recovery_completed"
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

export const makeRecoveries = (incidents, job) =>
  incidents
    .filter((i) => i.job === job && i.plan)
    .map((i) => ({
      id: `recovery-${i.id}`,
      job,
      generation: i.plan.generation,
      failed_at: i.opened_at,
      planned_at: i.recovering_at,
      recovered_at: i.recovered_at,
      verified_at: i.verified_at,
      failed_ranks: i.ranks,
      strategy: i.plan.chosen,
      steps_lost: i.plan.actual_steps_lost,
      planned_seconds: i.plan.alternatives[0].seconds,
      seconds: i.plan.actual_seconds,
      parts: i.plan.actual_parts,
      epoch: 18230,
      outcome: i.recovered_at ? "verified" : "running",
      incident: i.id,
    }));
