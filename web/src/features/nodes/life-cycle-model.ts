/** The life of a node as a person sees it: the way round, and what may be asked of it from where it stands. Pure. */
import type { HealthState, Node } from "@/api/types";

/** The way out of work and back; unknown stands beside it. */
export const round: HealthState[] = ["healthy", "suspect", "draining", "quarantined", "validating"];

export type NodeAct = "drain" | "undrain" | "quarantine" | "validate";

const FROM: Record<NodeAct, HealthState[]> = {
  drain: ["healthy", "suspect", "unknown"],
  undrain: ["draining"],
  quarantine: ["healthy", "suspect", "draining", "validating", "unknown"],
  validate: ["healthy", "suspect", "draining", "quarantined", "unknown"],
};

/** The acts that make sense here. The service has the last word; this only leaves out what it would refuse for sure. */
export function actsFor(node: Pick<Node, "state" | "owner">): NodeAct[] {
  const acts = (Object.keys(FROM) as NodeAct[]).filter((act) => FROM[act].includes(node.state));
  return node.owner === "outside" ? acts.filter((act) => act !== "undrain") : acts;
}

/** The one that a person most likely came for. */
export function likelyAct(node: Pick<Node, "state" | "owner">): NodeAct | null {
  if (node.state === "quarantined") return "validate";
  if (node.state === "suspect") return "drain";
  return null;
}

/** Why a door is closed, where one would look for it. */
export function closedDoor(node: Pick<Node, "state" | "owner">): string | null {
  if (node.state === "draining" && node.owner === "outside")
    return "Another system drained it. Only that system may take it back.";
  if (node.state === "quarantined") return "Only a validation that passes leads out of quarantine.";
  if (node.state === "validating") return "A pass leads back to healthy; anything else to quarantine.";
  return null;
}
