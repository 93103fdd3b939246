// A stand-in for the XID policy: rules, versions, a test on history, shadow results.

const rule = (code, title, group, severity, recommendedAction, repeat = null, note = "", family = "xid") => ({
  family,
  code,
  title,
  group,
  severity,
  recommended_action: recommendedAction,
  repeat,
  note,
  overridden: false,
});

const RULES = [
  rule(
    8,
    "a channel was idle too long, so the engine was stopped",
    "app",
    "info",
    "restart_job",
    "3 jobs within 24 h: warning, monitor",
  ),
  rule(
    13,
    "the program made an illegal access or instruction",
    "app",
    "info",
    "restart_job",
    "3 jobs within 24 h on this GPU: warning, inspect_node",
  ),
  rule(31, "the program touched memory that it does not own", "app", "info", "restart_job"),
  rule(43, "a program was stopped after its own fault", "app", "info", "restart_job"),
  rule(
    45,
    "a channel was cleaned up before its time",
    "app",
    "info",
    "none",
    null,
    "Follows another error; the other one counts.",
  ),
  rule(
    48,
    "double-bit ECC error",
    "memory",
    "critical",
    "reset_gpu",
    null,
    "With 63 or 64 at its side the row is remapped.",
  ),
  rule(61, "the microcontroller of the GPU stopped", "firmware", "critical", "reset_gpu"),
  rule(62, "the microcontroller of the GPU halted", "firmware", "critical", "reset_gpu"),
  rule(
    63,
    "a row was remapped, or waits for a reset",
    "memory",
    "warning",
    "monitor",
    null,
    "Reset when no job runs.",
  ),
  rule(64, "a row could not be remapped", "memory", "critical", "reset_gpu"),
  rule(
    74,
    "NVLink error",
    "nvlink",
    "warning",
    "monitor",
    "2 within 24 h on the same link: critical, inspect_node",
  ),
  rule(
    79,
    "the GPU has fallen off the bus",
    "bus",
    "critical",
    "reboot_node",
    "2 within 168 h: critical, inspect_node",
    "Inspect power and riser if it recurs.",
  ),
  rule(92, "many single-bit errors", "memory", "info", "monitor"),
  rule(94, "contained ECC error", "memory", "info", "restart_job"),
  rule(95, "uncontained ECC error", "memory", "critical", "reset_gpu"),
  rule(119, "the GSP firmware does not answer", "firmware", "critical", "reboot_node"),
  rule(140, "unrecovered ECC error", "memory", "critical", "reset_gpu"),
  rule(149, "NVLink: fatal link error", "nvlink", "critical", "inspect_node"),
  rule(11012, "a switch corrected a memory error", "fabric", "info", "none", null, "", "sxid"),
  rule(
    20034,
    "a switch link failed for good",
    "fabric",
    "critical",
    "reboot_node",
    null,
    "Fatal or not: the line says which.",
    "sxid",
  ),
  rule(22013, "a harmless notice of the switch", "fabric", "info", "none", null, "", "sxid"),
];

const ACTIVE = `# Riser cables of rack 3 were changed in May; a repeat means the slot.
[xid.79]
recommended_action = "inspect_node"

[xid.74]
severity = "info"
`;
const SHADOW = `${ACTIVE}
# Strict: isolate on a contained error too.
[xid.94]
severity = "critical"
recommended_action = "reset_gpu"
`;

export function makePolicies(scenario, now) {
  const site = scenario === "busy" || scenario === "big";
  const version = (n, mode, overrides, age, reason) => ({
    version: n,
    digest: `${n}f3a91c0d2b7e845`.repeat(2),
    mode,
    overrides,
    created_at: now - age,
    actor: "operator",
    reason,
    changed_at: now - age,
    changed_by: "operator",
    changed_reason: reason,
  });
  const versions = site
    ? [
        version(3, "shadow", SHADOW, 86400, "try strict isolation on contained errors for a week"),
        version(2, "active", ACTIVE, 86400 * 20, "a repeat of 79 here has always been the slot"),
        version(1, "retired", "", 86400 * 40, "begin"),
      ]
    : [];
  return {
    versions,
    get policy() {
      const active = this.versions.find((v) => v.mode === "active");
      const shadow = this.versions.find((v) => v.mode === "shadow");
      const changed = active
        ? [...active.overrides.matchAll(/^\[xid\.(\d+)\]/gm)].map((m) => Number(m[1]))
        : [];
      return {
        digest: active?.digest ?? "0c2b7e8451f3a91d0c2b7e8451f3a91d",
        version: active?.version ?? null,
        mode: active ? "active" : "builtin",
        shadow: shadow ?? null,
        rules: RULES.map((r) => (changed.includes(r.code) ? { ...r, overridden: true } : r)),
      };
    },
    push({ overrides, mode, reason }) {
      for (const v of this.versions) if (v.mode === mode) v.mode = "retired";
      const made = {
        ...version(this.versions.length + 1, mode, overrides, 0, reason),
        created_at: Date.now() / 1000,
      };
      this.versions.unshift(made);
      return made;
    },
    set(number, mode) {
      for (const v of this.versions) if (v.mode === mode && mode !== "retired") v.mode = "retired";
      const found = this.versions.find((v) => v.version === number);
      if (found) found.mode = mode;
      return found;
    },
  };
}

const ruling = (severity, recommendedAction) => `${severity}, ${recommendedAction}`;

export const policyTest = (body, now) => {
  const strict = /xid\.94/.test(body.overrides);
  const change = (age, node, device, code, before, after) => ({
    node,
    device,
    code,
    time: now - age,
    before,
    after,
  });
  return {
    events: 1384,
    since: body.since ?? now - 86400 * 30,
    until: body.until ?? now,
    truncated: false,
    changes_total: strict ? 3 : 0,
    before: { findings: 41, drains: 2 },
    after: { findings: strict ? 44 : 41, drains: strict ? 5 : 2 },
    changes: strict
      ? [
          change(
            40_000,
            "rack01-node3",
            "gpu3",
            94,
            ruling("info", "restart_job"),
            ruling("critical", "reset_gpu"),
          ),
          change(
            400_000,
            "rack02-node1",
            "gpu0",
            94,
            ruling("info", "restart_job"),
            ruling("critical", "reset_gpu"),
          ),
          change(
            900_000,
            "rack02-node1",
            "gpu0",
            94,
            ruling("info", "restart_job"),
            ruling("critical", "reset_gpu"),
          ),
        ]
      : [],
  };
};

export const shadowVerdicts = (scenario, now) =>
  scenario === "busy"
    ? [
        [40_000, "rack01-node3", "gpu3"],
        [71_000, "rack02-node1", "gpu0"],
      ].map(([age, node, device], i) => ({
        id: `shadow-${i}`,
        node,
        device,
        code: 94,
        version: 3,
        time: now - age,
        live: ruling("info", "restart_job"),
        shadow: ruling("critical", "reset_gpu"),
      }))
    : [];
