/** The gate's answer in looks and words. */
import type { Admission, NodeAdmission } from "@/api/types";
import type { Look } from "@/lib/states";

export const decisionLook: Record<Admission["decision"], Look> = {
  allow: { label: "Allow", tone: "healthy", glyph: "check", about: "Nothing is said against it" },
  allow_degraded: {
    label: "Allow, degraded",
    tone: "suspect",
    glyph: "triangle",
    about: "Known, but weaker or older than wished for",
  },
  deny: {
    label: "Deny",
    tone: "quarantined",
    glyph: "cross",
    about: "Known to be bad, or not known to be fit",
  },
};

const ignorance = new Set([
  "unknown_node",
  "silent",
  "never_validated",
  "validation_unknown",
  "being_validated",
]);

/** Of denied nodes, how many are denied only because nothing is known: a check may mend that, a repair need not. */
export function deniedUnknown(nodes: readonly NodeAdmission[]): number {
  return nodes.filter(
    (node) =>
      node.decision === "deny" &&
      node.reasons
        .filter((reason) => reason.decision === "deny")
        .every(({ code }) => ignorance.has(code) || (code === "state" && node.state === "unknown")),
  ).length;
}
