/** Texts of proposals. */
import type { Breaker, Remediation } from "@/api/types";
import { deviceName } from "@/features/devices/device-labels";
import { age, integer, percent, plural } from "@/lib/format";
import { recommendedAction, statusStyleOf } from "@/lib/status-styles";

/** Whether a proposal waits for an operator: it is proposed, or a rule holds it. */
export const isWaiting = (item: Pick<Remediation, "state">) =>
  item.state === "proposed" || item.state === "held";

const STEPS: Partial<Record<Remediation["recommended_action"], string>> = {
  migrate_ranks: "Move the ranks off {node} to warm standbys",
  reset_gpu: "Drain {node}, then reset the GPU",
  reboot_node: "Drain {node}, then reboot it",
  inspect_node: "Drain {node}, then inspect it",
  replace: "Drain {node}, then replace the device",
};

/** Return the proposed action as one sentence without its period. */
export function actionText(item: Pick<Remediation, "recommended_action" | "node" | "device">): string {
  const known = STEPS[item.recommended_action]?.replace("{node}", item.node);
  const text = known ?? `${statusStyleOf(recommendedAction, item.recommended_action).label} on ${item.node}`;
  return item.device && item.device !== "host" && item.recommended_action === "reset_gpu"
    ? text.replace("the GPU", deviceName(item.device))
    : text;
}

/** The decisive rule: the first that denies, else the first that holds, else none. */
export function decisiveRule(rules: Remediation["rules"]): Remediation["rules"][number] | null {
  return (
    rules.find((rule) => rule.verdict === "deny") ?? rules.find((rule) => rule.verdict === "hold") ?? null
  );
}

/** Whether a rule denies the proposal; an operator cannot accept it either. */
export const isDenied = (item: Pick<Remediation, "rules">) =>
  item.rules.some((rule) => rule.verdict === "deny");

/** Order proposals: waiting first, then newest. */
export function byUrgency(items: readonly Remediation[]): Remediation[] {
  return [...items].sort(
    (a, b) => Number(isWaiting(b)) - Number(isWaiting(a)) || b.created_at - a.created_at,
  );
}

/** Return the state of the breaker: "3 of at most 12 nodes in 10 min". */
export function breakerText(breaker: Breaker): string {
  const most = Math.max(1, Math.floor(breaker.max_drained_ratio * breaker.fleet));
  return `${integer(breaker.touched)} of at most ${plural(most, "node")} (${percent(breaker.max_drained_ratio, 0)} of ${integer(breaker.fleet)}) in ${age(breaker.window_seconds)}, at most ${integer(breaker.max_drained_per_rack)} in a rack`;
}
