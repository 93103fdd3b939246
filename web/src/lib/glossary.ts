/** Terms of the dashboard, with the definitions of the project glossary (docs/glossary.md). */
export const glossary = {
  job: "One training workload under one job ID, across restarts.",
  rank: "One training process, as in torch.distributed.",
  "mesh position": "The coordinates (dp, pp, tp) of one rank; without a process it is absent.",
  "steps lost": "Committed steps (all ranks voted) that training repeats after a recovery.",
  generation: "One incarnation of the process groups; it grows with each regroup.",
  snapshot: "A copy of one rank's training state in host memory.",
  checkpoint: "A copy of the job's training state on disk.",
  "parity group": "Nodes whose snapshots are protected together by an erasure code.",
  "extra copy": "A temporary peer copy of a rank on a node with a warning.",
  durability: "The probability that memory can restore the job after node losses in the next hour.",
  scrub: "A pass that rereads snapshot memory and repairs changed bytes.",
  "restore drill": "A test that decodes a slot from parity and compares the bytes.",
  "warm standby": "A started process without a rank that can take one at once.",
  "spare node": "A node outside the job that can replace a lost one.",
  "detector status": "What a detector can do now: idle, learning, active, or abstaining.",
  finding: "A detector's statement that an entity has a problem, with evidence.",
  recommendation: "A finding about job layout that is not a fault and opens no incident.",
  incident: "A group of related findings that is tracked to closure.",
  "active incident": "An incident in state open or recovering, or one that needs an operator.",
  "recommended action": "The mildest action expected to repair the fault.",
  remediation: "A proposed or accepted recommended action for one node.",
  drain: "Give a node no new work and move running work away.",
  quarantine: "Keep a node out of service until a validation passes.",
  suspect: "A node state: a finding or failed validation is active.",
  validation: "One execution of a suite on one node, with a verdict.",
  criterion: "The healthy range of one metric in one cohort.",
  cohort: "Nodes or devices with comparable hardware, driver, and firmware.",
  verdict: "PASS, WARN, FAIL, or UNKNOWN; a FAIL latches until an equal or stronger suite passes.",
  "fault localization": "Naming the bad GPU, NIC, node, cable, or switch from pairwise measurements.",
  straggler: "A rank whose own compute time is longer than expected.",
  recovery: "One restoration of a job, from the failure to the verified step.",
  "recovery strategy": "A way to continue after a failure: local slot, reroute, drop and heal, ...",
  "recovery plan": "The evaluated strategies for one failure and the chosen one.",
  "excess cost": "Measured cost of the chosen strategy minus the predicted cost of the best alternative.",
  request:
    "A request to a running job, such as migrate, restore, degrade, reshape, or save; its coordinator decides.",
  migration: "Moving ranks of a running job to standbys on other nodes.",
  ETTR: "Effective training time ratio: productive time divided by wall time.",
  MTBF: "Mean time between failures, of one node unless stated.",
} as const;

export type TermName = keyof typeof glossary;

export const terms = Object.keys(glossary) as TermName[];

/** Return the anchor of a term on the glossary page. */
export const anchorOf = (name: TermName): string => name.toLowerCase().replaceAll(" ", "-");
