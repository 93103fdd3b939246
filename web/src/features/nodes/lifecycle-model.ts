/** The life cycle of a node: the order of its states, and the actions that each state allows. */
import type { HealthState, Node } from "@/api/types";

/** The states from healthy and back; unknown is separate. */
export const round: HealthState[] = ["healthy", "suspect", "draining", "quarantined", "validating"];

export type NodeAction = "drain" | "undrain" | "quarantine" | "validate";

const FROM: Record<NodeAction, HealthState[]> = {
  drain: ["healthy", "suspect", "unknown"],
  undrain: ["draining"],
  quarantine: ["healthy", "suspect", "draining", "validating", "unknown"],
  validate: ["healthy", "suspect", "draining", "quarantined", "unknown"],
};

/** Return the actions that the state allows. The service still checks each action. */
export function allowedActions(node: Pick<Node, "state" | "owner">): NodeAction[] {
  const actions = (Object.keys(FROM) as NodeAction[]).filter((act) => FROM[act].includes(node.state));
  return node.owner === "external" ? actions.filter((action) => action !== "undrain") : actions;
}

/** Return the most likely action. */
export function likelyAction(node: Pick<Node, "state" | "owner">): NodeAction | null {
  if (node.state === "quarantined") return "validate";
  if (node.state === "suspect") return "drain";
  return null;
}

/** Return why an expected action is not offered. */
export function blockedReason(node: Pick<Node, "state" | "owner">): string | null {
  if (node.state === "draining" && node.owner === "external")
    return "Another system drained this node. Only that system can undrain it.";
  if (node.state === "quarantined") return "Only a passed validation ends the quarantine.";
  if (node.state === "validating")
    return "If the validation passes, the node returns to healthy. Otherwise it goes to quarantine.";
  return null;
}
