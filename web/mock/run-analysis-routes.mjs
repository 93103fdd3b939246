// Routes of a judged run, and the events and findings that belong to it.
import { makeEvents } from "./events.mjs";
import { judgement, pairs, progress, signals } from "./run-analysis.mjs";
import { jobFindings, stackDumps } from "./run-analysis-findings.mjs";

export function judgedRoutes({ jobs, incidents, started, page, where, find, Problem }) {
  const job = (id) => find(jobs, "id", id, "job");
  const now = () => Date.now() / 1000;
  const unknown = (name) =>
    new Problem(422, "unprocessable", "Unprocessable", `signal "${name}" is no signal of a rank`);
  const dumps = jobs.flatMap((j) => stackDumps(j, started));
  for (const dump of dumps) {
    const told = incidents.find((i) => i.job === dump.job && i.recovered_at === null);
    told?.timeline.push({
      time: dump.time,
      kind: "stack_dump",
      text: `Stacks of rank ${dump.rank} on ${dump.node}: ${dump.data.reason}.`,
      data: { event: dump.id, rank: dump.rank, node: dump.node, stacks: dump.data.stacks },
    });
  }
  const findings = () =>
    [...incidents.flatMap((i) => i.findings), ...jobs.flatMap((j) => jobFindings(j, started))]
      .map((f) => ({ ...f, job: f.entity.job }))
      .sort((a, b) => b.time - a.time);
  return [
    ["GET", /^\/v1\/jobs\/([^/]+)\/signals$/, (q, id) => signals(job(id), q, unknown)],
    ["GET", /^\/v1\/jobs\/([^/]+)\/progress$/, (_q, id) => progress(job(id), now())],
    ["GET", /^\/v1\/jobs\/([^/]+)\/transfers$/, (_q, id) => pairs(job(id))],
    ["GET", /^\/v1\/jobs\/([^/]+)\/detectors$/, (_q, id) => judgement(job(id))],
    ["GET", /^\/v1\/findings$/, (q) => page(where(findings(), q, "job", "kind", "active"), q)],
    [
      "GET",
      /^\/v1\/events$/,
      (q) => page(where([...dumps, ...makeEvents(incidents, jobs)], q, "node", "job", "kind"), q),
    ],
  ];
}
