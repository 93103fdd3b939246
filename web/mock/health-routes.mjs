// The routes of node health, for server.mjs.
import {
  biography,
  deviceHistory,
  makeDevice,
  makeRemediations,
  makeStatus,
  makeTransitions,
} from "./health.mjs";
import { makePolicies, policyTest, shadowVerdicts } from "./policies.mjs";

const AFTER = { drain: "draining", undrain: "suspect", quarantine: "quarantined", validate: "validating" };
const ALLOWED = {
  drain: ["healthy", "suspect", "unknown"],
  undrain: ["draining"],
  quarantine: ["healthy", "suspect", "unknown", "draining", "validating"],
  validate: ["healthy", "suspect", "unknown", "draining", "quarantined"],
};

export function healthRoutes({ scenario, nodes, incidents, page, where, find, Problem, missing }) {
  const now = () => Date.now() / 1000;
  const started = now();
  const remediations = makeRemediations(scenario, incidents, started);
  const policies = makePolicies(scenario, started);
  const histories = new Map();
  const targets = scenario === "busy" ? TARGETS(started) : [];
  const transitions = (name) => {
    const node = find(nodes, "name", name, "node");
    if (!histories.has(name)) histories.set(name, makeTransitions(node, started));
    return histories.get(name);
  };

  function act(name, what, body) {
    const node = find(nodes, "name", name, "node");
    const history = transitions(name);
    if (!ALLOWED[what].includes(node.state))
      throw new Problem(409, "illegal-transition", "Illegal transition", `The node is ${node.state}.`);
    if (body.expected_version != null && body.expected_version !== node.state_version)
      throw new Problem(
        409,
        "changed-meanwhile",
        "It has changed meanwhile",
        `The node is ${node.state} now.`,
      );
    if (what === "undrain" && node.owner === "external")
      throw new Problem(409, "not-our-drain", "Not our drain", "Another system drained this node.");
    const from_state = node.state;
    Object.assign(node, {
      state: AFTER[what],
      state_reason: body.reason,
      owner: "operator",
      actor: "operator",
      state_since: now(),
      state_version: node.state_version + 1,
    });
    history.unshift({
      id: `t${history.length}${name}`,
      node: name,
      time: now(),
      from_state,
      to_state: node.state,
      owner: "operator",
      actor: "operator",
      reason: body.reason,
      incident: null,
    });
    return node;
  }

  function decide(id, what) {
    const item = find(remediations, "id", id, "remediation");
    if (item.decided_at !== null)
      throw new Problem(409, "already-decided", "Already decided", `The proposal is ${item.state}.`);
    const state = what === "accept" ? "accepted" : "dismissed";
    return Object.assign(item, { state, decided_at: now(), decided_by: "operator" });
  }

  const seated = (key) => {
    const found = makeDevice(nodes, key);
    if (!found) throw missing(`device ${key}`);
    return found;
  };

  return [
    ["GET", /^\/v1\/nodes\/([^/]+)\/transitions$/, (q, name) => page(transitions(name), q)],
    [
      "POST",
      /^\/v1\/nodes\/([^/]+):(drain|undrain|quarantine|validate)$/,
      (_q, name, what, body) => act(name, what, body),
    ],
    ["GET", /^\/v1\/remediations$/, (q) => page(where(remediations, q, "state", "node"), q)],
    ["POST", /^\/v1\/remediations\/([^/]+):(accept|dismiss)$/, (_q, id, what) => decide(id, what)],
    ["GET", /^\/v1\/remediation-status$/, () => makeStatus(scenario, nodes)],
    ["GET", /^\/v1\/devices\/([^/]+)$/, (_q, key) => biography(seated(key), now())],
    [
      "GET",
      /^\/v1\/devices\/([^/]+)\/history$/,
      (q, key) => page(deviceHistory(seated(key), incidents, now()), q),
    ],
    ["GET", /^\/v1\/policies\/xid$/, () => policies.policy],
    ["PUT", /^\/v1\/policies\/xid\/overrides$/, (_q, body) => policies.push(body)],
    ["POST", /^\/v1\/policies\/xid:test$/, (_q, body) => policyTest(body, now())],
    [
      "POST",
      /^\/v1\/policies\/xid:(activate|retire)$/,
      (_q, what, body) => policies.set(body.version, what === "activate" ? "active" : "retired"),
    ],
    ["GET", /^\/v1\/policies\/xid\/versions$/, (q) => page(policies.versions, q)],
    ["GET", /^\/v1\/policies\/xid\/shadow$/, (q) => page(shadowVerdicts(scenario, now()), q)],
    ["GET", /^\/v1\/ingest\/dcgm-targets$/, (q) => page(targets, q)],
    [
      "POST",
      /^\/v1\/ingest\/dcgm-targets$/,
      (_q, body) => {
        const made = {
          ...body,
          id: `t${targets.length}`,
          last_scrape_at: null,
          last_error: null,
          samples: 0,
        };
        targets.push(made);
        return made;
      },
    ],
    [
      "DELETE",
      /^\/v1\/ingest\/dcgm-targets\/([^/]+)$/,
      (_q, id) => {
        targets.splice(targets.indexOf(find(targets, "id", id, "target")), 1);
        return {};
      },
    ],
  ];
}

const TARGETS = (now) => [
  {
    id: "t1",
    url: "http://rack09-node1:9400/metrics",
    node: "rack09-node1",
    interval_seconds: 15,
    enabled: true,
    last_scrape_at: now - 6,
    last_error: null,
    samples: 184_220,
  },
  {
    id: "t2",
    url: "http://rack09-node2:9400/metrics",
    node: "rack09-node2",
    interval_seconds: 15,
    enabled: true,
    last_scrape_at: now - 940,
    last_error: "It did not answer within 5 s.",
    samples: 93_004,
  },
];
