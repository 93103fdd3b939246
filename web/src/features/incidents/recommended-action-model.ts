/** The recommended action of an incident: the strongest one that any of its active findings recommends. */
import type { Finding, RecommendedAction } from "@/api/types";
import { recommendedActionOrder } from "@/lib/status-styles";

const level = (action: RecommendedAction) => recommendedActionOrder.indexOf(action);

export const evicts = (action: RecommendedAction) => level(action) >= level("reset_gpu");

export function strongestAction(
  findings: readonly Pick<Finding, "recommended_action" | "active">[],
): RecommendedAction {
  const active = findings.filter((finding) => finding.active);
  // Without an active finding, the actions of the cleared findings still show what the fault was.
  const relevant = active.length > 0 ? active : findings;
  return relevant
    .map((finding) => finding.recommended_action)
    .reduce((most, action) => (level(action) > level(most) ? action : most), "none");
}
