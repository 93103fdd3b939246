// A stand-in for the service, for working on the dashboard and for taking its picture. Not part of the build.
//   node mock/server.mjs --port 8090 --scenario busy|calm|empty|big [--broken] [--slow MS] [--dist]
import { createServer } from "node:http";
import { parseArgs } from "node:util";
import { brief, makeRecoveries } from "./events.mjs";
import { listNodes, makeLayout, makeNodes, STATES } from "./fleet.mjs";
import { healthRoutes } from "./health-routes.mjs";
import { makeIncidents } from "./incidents.mjs";
import { makeJobs, steps } from "./jobs.mjs";
import { judgedRoutes } from "./run-analysis-routes.mjs";
import { publicSignals, snapshot, telemetry } from "./signals.mjs";
import { file } from "./static.mjs";
import { makeCriteria, makeSweeps, makeValidations, suites } from "./validation.mjs";

const { values: args } = parseArgs({
  options: {
    port: { type: "string", default: "8090" },
    scenario: { type: "string", default: "busy" },
    broken: { type: "boolean", default: false },
    slow: { type: "string", default: "0" },
  },
});
const { scenario } = args;
const started = Date.now() / 1000;

const nodes = makeNodes(scenario, started);
const jobs = makeJobs(scenario, nodes, started);
const incidents = makeIncidents(scenario, nodes, jobs, started);
const layout = makeLayout(nodes);
const validations = makeValidations(scenario, nodes, started);

/** Ages move on while the mock runs; its data stays the same. */
function present() {
  const now = Date.now() / 1000;
  const drift = now - started;
  const live = nodes.map((n) => (n.state === "unknown" ? n : { ...n, last_seen_at: n.last_seen_at + drift }));
  const running = jobs.map((j) => (j.finished_at ? j : { ...j, last_seen_at: j.last_seen_at + drift }));
  return { now, nodes: live, jobs: running };
}

class Problem extends Error {
  constructor(status, slug, title, detail) {
    super(detail);
    this.body = { type: `urn:mainstay:problem:${slug}`, title, status, detail };
  }
}
const missing = (what) => new Problem(404, "not-found", "Not found", `There is no ${what}.`);

function page(items, query) {
  const limit = Number(query.get("limit") ?? 100);
  const at = Number(query.get("cursor") ?? 0);
  const next = at + limit < items.length ? String(at + limit) : null;
  return { items: items.slice(at, at + limit), next_cursor: next };
}

const where = (items, query, ...keys) =>
  items.filter((item) => keys.every((k) => query.get(k) === null || String(item[k]) === query.get(k)));

const find = (items, key, value, what) => {
  const found = items.find((item) => item[key] === value);
  if (!found) throw missing(`${what} ${value}`);
  return found;
};

function overview() {
  const { now, nodes: live, jobs: running } = present();
  const counts = {};
  for (const node of live) counts[node.state] = (counts[node.state] ?? 0) + 1;
  const burning = incidents.filter((i) => i.recovered_at === null && i.closed_at === null);
  return {
    active_incidents: burning.map(brief),
    automated_actions: incidents
      .filter((i) => i.plan)
      .map((i) => ({
        time: i.opened_at + 0.31,
        text: `Rank ${i.ranks[0]} restores from the local slot, predicted ${i.plan.alternatives[0].seconds.toFixed(1)} s`,
        incident: i.id,
        plan: i.plan.id,
        job: i.job,
      })),
    needs_operator: burning.filter((i) => i.needs_operator).map(brief),
    nodes: counts,
    devices: live.reduce((sum, n) => sum + n.devices.length, 0),
    jobs: running,
    data_age_seconds: nodes.length ? 0.8 : null,
    now,
  };
}

const SCOPES = ["read", "act", "admin"];
const routes = [
  ["GET", /^\/v1\/auth\/me$/, () => ({ subject: "operator", scopes: SCOPES, kind: "admin" })],
  ["GET", /^\/v1\/overview$/, () => overview()],
  [
    "GET",
    /^\/v1\/nodes$/,
    (q) => {
      const { found, rest } = listNodes(present().nodes, q);
      return { ...page(found, q), ...rest };
    },
  ],
  ["GET", /^\/v1\/nodes\/([^/]+)$/, (_q, name) => find(present().nodes, "name", name, "node")],
  ["GET", /^\/v1\/fleet\/heatmap-layout$/, () => layout],
  ["GET", /^\/v1\/signals$/, () => ({ items: publicSignals })],
  ["GET", /^\/v1\/telemetry\/query$/, (q) => telemetry(present().nodes, q, Date.now() / 1000)],
  ...judgedRoutes({ jobs, incidents, started, page, where, find, Problem }),
  ["GET", /^\/v1\/jobs$/, (q) => page(present().jobs, q)],
  ["GET", /^\/v1\/jobs\/([^/]+)$/, (_q, id) => find(present().jobs, "id", id, "job")],
  ["GET", /^\/v1\/jobs\/([^/]+)\/steps$/, (q, id) => steps(find(jobs, "id", id, "job"), q)],
  ["GET", /^\/v1\/jobs\/([^/]+)\/recoveries$/, (q, id) => page(makeRecoveries(incidents, id), q)],
  [
    "GET",
    /^\/v1\/incidents$/,
    (q) => page(where(incidents, q, "state", "job", "node", "cause").map(brief), q),
  ],
  ["GET", /^\/v1\/incidents\/([^/:]+)$/, (_q, id) => find(incidents, "id", id, "incident")],
  ["POST", /^\/v1\/incidents\/([^/:]+):(close|acknowledge)$/, (_q, id, what, body) => change(id, what, body)],
  ["GET", /^\/v1\/suites$/, () => suites],
  ["GET", /^\/v1\/validations$/, (q) => page(where(validations, q, "node", "sweep"), q)],
  ["GET", /^\/v1\/validations\/([^/]+)$/, (_q, id) => find(validations, "id", id, "validation")],
  ["POST", /^\/v1\/validations$/, (_q, body) => order(body)],
  ["GET", /^\/v1\/criteria$/, (q) => page(makeCriteria(scenario, started), q)],
  ["GET", /^\/v1\/sweeps$/, (q) => page(makeSweeps(scenario, started), q)],
  ...healthRoutes({ scenario, nodes, incidents, page, where, find, Problem, missing }),
];

function change(id, what, { reason }) {
  const incident = find(incidents, "id", id, "incident");
  if (incident.state === "closed")
    throw new Problem(409, "illegal-transition", "Illegal transition", "The incident is already closed.");
  const now = Date.now() / 1000;
  incident.timeline.push({
    time: now,
    kind: what === "close" ? "closed" : "acknowledged",
    text: `operator: ${reason}`,
    data: {},
  });
  if (what === "close") Object.assign(incident, { state: "closed", closed_at: now });
  return brief(incident);
}

function order({ node, suite }) {
  const now = Date.now() / 1000;
  const made = {
    ...validations[0],
    id: `00000000-0000-7000-8000-${String(validations.length).padStart(12, "0")}`,
    node,
    suite,
    state: "queued",
    verdict: "unknown",
    reason: "Waiting for the node to fetch the task.",
    created_at: now,
    started_at: null,
    finished_at: null,
    results: [],
  };
  validations.unshift(made);
  return made;
}

function answer(response, status, body, headers = {}) {
  response.writeHead(status, {
    "Content-Type": status < 400 ? "application/json" : "application/problem+json",
    ...headers,
  });
  response.end(JSON.stringify(body));
}

async function readBody(request) {
  let text = "";
  for await (const chunk of request) text += chunk;
  return text ? JSON.parse(text) : {};
}

function watch(request, response) {
  response.writeHead(200, { "Content-Type": "text/event-stream", "Cache-Control": "no-store" });
  response.write("retry: 1000\n: mock\n\n");
  let id = 0;
  const timer = setInterval(() => {
    id += 1;
    response.write(`id: ${id}\nevent: telemetry\ndata: {"id":${id}}\n\n`);
    if (id % 5 === 0) response.write(`id: ${id}\nevent: node\ndata: {"id":"x"}\n\n`);
  }, 1000);
  request.on("close", () => clearInterval(timer));
}

function fleetSnapshot(query, response) {
  const now = Date.now() / 1000;
  const { bytes, low, high } = snapshot(nodes, layout, query.get("signal") ?? "state", STATES, now);
  response.writeHead(200, {
    "Content-Type": "application/octet-stream",
    "X-Mainstay-Low": low,
    "X-Mainstay-High": high,
    "X-Mainstay-Heatmap-Layout": layout.version,
    "X-Mainstay-Time": now,
  });
  response.end(bytes);
}

async function handle(request, response) {
  const url = new URL(request.url, "http://mock");
  const { pathname, searchParams } = url;
  if (!pathname.startsWith("/v1/")) return file(pathname, response);
  if (args.broken)
    throw new Problem(
      503,
      "database-away",
      "The database is unavailable",
      "SQLite could not be opened: disk I/O error. Node daemons keep their data.",
    );
  if (pathname === "/v1/watch") return watch(request, response);
  if (pathname === "/v1/fleet/heatmap") return fleetSnapshot(searchParams, response);
  if (pathname === "/v1/auth/session") {
    const { token } = request.method === "POST" ? await readBody(request) : {};
    if (request.method === "POST" && token !== "good")
      throw new Problem(401, "invalid-token", "Not signed in", "No such token.");
    response.writeHead(204).end();
    return undefined;
  }
  for (const [method, pattern, reply] of routes) {
    const match = pattern.exec(decodeURIComponent(pathname));
    if (!match || method !== request.method) continue;
    const body = method === "POST" || method === "PUT" ? [await readBody(request)] : [];
    return answer(
      response,
      method === "POST" && pathname === "/v1/validations" ? 202 : 200,
      reply(searchParams, ...match.slice(1), ...body),
    );
  }
  throw missing(`route ${request.method} ${pathname}`);
}

const server = createServer((request, response) => {
  setTimeout(() => {
    handle(request, response).catch((error) => {
      if (error instanceof Problem) answer(response, error.body.status, error.body);
      else
        answer(response, 500, {
          type: "about:blank",
          title: "The mock failed",
          status: 500,
          detail: String(error.stack),
        });
    });
  }, Number(args.slow));
});
server.listen(Number(args.port), "127.0.0.1", () =>
  console.log(`mock ${scenario} on http://127.0.0.1:${server.address().port}`),
);
