/** Styles and texts of the admission result. */
import type { Admission, NodeAdmission } from "@/api/types";
import type { StatusStyle } from "@/lib/status-styles";

export const decisionLook: Record<Admission["decision"], StatusStyle> = {
  allow: { label: "Allow", tone: "healthy", glyph: "check", about: "No reason against it" },
  allow_degraded: {
    label: "Allow, degraded",
    tone: "suspect",
    glyph: "triangle",
    about: "Validated, but with a weaker or older suite than requested",
  },
  deny: {
    label: "Deny",
    tone: "quarantined",
    glyph: "cross",
    about: "A fault is known, or the health is unknown",
  },
};

/** Names of racks or cohorts, which may contain spaces. */
export const listed = (text: string): string[] => [
  ...new Set(
    text
      .split(",")
      .map((name) => name.trim())
      .filter(Boolean),
  ),
];

const ignorance = new Set([
  "unknown_node",
  "silent",
  "never_validated",
  "validation_unknown",
  "being_validated",
]);

/** Count the nodes that are denied only for missing data, which a validation may provide. */
export function deniedUnknown(nodes: readonly NodeAdmission[]): number {
  return nodes.filter(
    (node) =>
      node.decision === "deny" &&
      node.reasons
        .filter((reason) => reason.decision === "deny")
        .every(({ code }) => ignorance.has(code) || (code === "state" && node.state === "unknown")),
  ).length;
}
