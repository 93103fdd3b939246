// The life of nodes and devices: transitions, proposals with their rules, biographies.
import { uuid } from "./random.mjs";

const HOUR = 3600;

export function makeTransitions(node, now) {
  if (node.state === "healthy" && node.name.endsWith("2")) return [];
  const rows = [
    [86400 * 9, "unknown", "healthy", "system", "detector", "reports on time", null],
    [86400 * 4, "healthy", "draining", "operator", "operator", "firmware 28.43 on the ports", null],
    [86400 * 4 - HOUR, "draining", "validating", "operator", "operator", "back after the firmware", null],
    [86400 * 4 - 2 * HOUR, "validating", "healthy", "system", "validation", "suite standard passed", null],
  ];
  if (node.state !== "healthy")
    rows.push([900, "healthy", "suspect", "system", "detector", node.state_reason, uuid(now - 610, "hot")]);
  if (!["healthy", "suspect"].includes(node.state))
    rows.push([
      now - node.state_since,
      "suspect",
      node.state,
      node.owner,
      node.actor,
      node.state_reason,
      null,
    ]);
  return rows
    .map(([age, from, to, owner, actor, reason, incident], i) => ({
      id: uuid(now - age, `${node.name}${i}`),
      node: node.name,
      time: now - age,
      from_state: from,
      to_state: to,
      owner,
      actor,
      reason,
      incident,
    }))
    .sort((a, b) => b.time - a.time);
}

const rule = (name, verdict, reason) => ({ name, verdict, reason });

export function makeRemediations(scenario, incidents, now) {
  if (scenario !== "busy" && scenario !== "big") return [];
  const hot = incidents.find((i) => i.device !== null);
  const base = { dry_run: true, decided_at: null, decided_by: null };
  const fine = [
    rule("node_known", "allow", "the node reports"),
    rule("not_drained_by_others", "allow", "no other owner holds it"),
  ];
  return [
    {
      ...base,
      id: uuid(now - 340, "p1"),
      incident: hot?.id ?? null,
      node: "rack01-node6",
      device: "gpu6",
      recommended_action: "reset_gpu",
      state: "proposed",
      reason: "XID 63: rows wait for a reset to be remapped, and the driver recommends one.",
      rules: [
        ...fine,
        rule("breaker", "allow", "the circuit breaker is closed"),
        rule("max_drained_per_rack", "allow", "its rack can spare it"),
        rule("job_has_spare", "allow", "no job depends on it alone"),
      ],
      created_at: now - 340,
    },
    {
      ...base,
      id: uuid(now - 1900, "p2"),
      incident: hot?.id ?? null,
      node: "rack02-node4",
      device: "gpu3",
      recommended_action: "inspect_node",
      state: "held",
      reason: "It runs 14 °C above 191 peers and has been throttled for 31 % of the last hour.",
      rules: [
        rule("in_service", "allow", "it is in service"),
        rule(
          "job_has_spare",
          "hold",
          "job ablation-17 has no other replica and no spare node: an operator decides",
        ),
        rule("max_drained_per_rack", "allow", "its rack can spare it"),
      ],
      created_at: now - 1900,
    },
    {
      ...base,
      id: uuid(now - 8 * HOUR, "p3"),
      incident: incidents.at(-1)?.id ?? null,
      node: "rack01-node6",
      device: "gpu6",
      recommended_action: "reboot_node",
      state: "done",
      dry_run: false,
      reason: "XID 79: the GPU has fallen off the bus.",
      rules: fine,
      created_at: now - 8 * HOUR,
      decided_at: now - 7.9 * HOUR,
      decided_by: "operator",
    },
    {
      ...base,
      id: uuid(now - 30 * HOUR, "p4"),
      incident: null,
      node: "rack03-node1",
      device: null,
      recommended_action: "reboot_node",
      state: "dismissed",
      reason: "The fabric manager is down.",
      rules: [...fine, rule("breaker", "hold", "3 of 24 nodes drained within 60 min; at most 2 are allowed")],
      created_at: now - 30 * HOUR,
      decided_at: now - 29 * HOUR,
      decided_by: "operator",
    },
  ];
}

export const makeStatus = (scenario, nodes) => ({
  mode: "dry_run",
  breaker: {
    open: scenario === "big",
    max_drained_ratio: 0.1,
    window_seconds: HOUR,
    touched: scenario === "big" ? 500 : Math.min(1, nodes.length),
    fleet: nodes.length,
    max_drained_per_rack: 1,
    reason:
      scenario === "big"
        ? "500 of 5000 nodes drained within 60 min; at most 500 are allowed"
        : `1 more of ${nodes.length} nodes may be drained within 60 min`,
  },
});

export function makeDevice(nodes, key) {
  for (const node of nodes) {
    const device = node.devices.find((d) => d.serial === key || d.uuid === key);
    if (device) return { node, device };
  }
  return null;
}

export function biography({ node, device }, now) {
  const before = device.previous_node;
  return {
    device,
    hardware: device.serial ?? device.uuid,
    locations: [
      { node: node.name, first_seen_at: now - 86400 * 6, last_seen_at: now - 1, present: true },
      ...(before
        ? [{ node: before, first_seen_at: now - 86400 * 61, last_seen_at: now - 86400 * 6.2, present: false }]
        : []),
    ],
    findings_active: node.open_incidents,
    findings_total: before ? 7 : node.open_incidents,
  };
}

export function deviceHistory({ node, device }, incidents, now) {
  const hot = incidents.find((i) => i.node === node.name)?.id ?? null;
  const old = device.previous_node;
  const row = (age, kind, where, severity, title, text, ref = null) => ({
    time: now - age,
    kind,
    node: where,
    severity,
    title,
    text,
    ref,
  });
  const rows = [
    row(
      86400 * 6,
      "move",
      node.name,
      null,
      `Put into ${node.name}`,
      old ? `It had sat in ${old}.` : "First seen.",
    ),
    row(
      86400 * 5.9,
      "verdict",
      node.name,
      null,
      "Suite standard: pass",
      "All 13 metrics inside their criteria.",
      uuid(now, "v"),
    ),
  ];
  if (node.open_incidents)
    rows.push(
      row(610, "finding", node.name, "warning", "Signal outlier", "75 °C while 191 peers run at 61 °C.", hot),
      row(569, "finding", node.name, "warning", "Compute slow", "Its rank takes 1.24 × its role peers.", hot),
      row(560, "transition", node.name, null, "The node became suspect", "by a detector", hot),
    );
  if (old)
    rows.push(
      row(86400 * 6.2, "move", old, null, `Taken out of ${old}`, ""),
      row(
        86400 * 6.4,
        "verdict",
        old,
        null,
        "Suite deep: fail",
        "bus_bandwidth of allreduce is 29 % under its limit.",
        uuid(now, "w"),
      ),
      row(86400 * 7, "event", old, null, "XID 63", "Row remapping event: rows wait for a reset."),
      row(
        86400 * 7,
        "finding",
        old,
        "critical",
        "Row remap",
        "A reset is needed before the rows are used again.",
      ),
      row(86400 * 7.1, "event", old, null, "XID 94", "Contained ECC error; the program was ended."),
      row(86400 * 31, "finding", old, "info", "ECC corrected", "312 corrected errors in an hour; peers: 0."),
      row(86400 * 61, "move", old, null, `Put into ${old}`, "First seen."),
    );
  return rows.sort((a, b) => b.time - a.time);
}
