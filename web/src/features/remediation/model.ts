/** Proposals as a person reads them. Pure. */
import type { Breaker, Remediation } from "@/api/types";
import { deviceName } from "@/features/devices/device-words";
import { age, integer, percent, plural } from "@/lib/format";
import { lookOf, remedy } from "@/lib/states";

/** Still waiting for somebody: proposed, or held back by a rule. */
export const isWaiting = (item: Pick<Remediation, "state">) =>
  item.state === "proposed" || item.state === "held";

const STEPS: Partial<Record<Remediation["remedy"], string>> = {
  migrate: "Move the ranks off {node} to warm standbys",
  reset_gpu: "Drain {node}, then reset the GPU",
  reboot_node: "Drain {node}, then reboot it",
  inspect: "Drain {node} and have it inspected",
  replace: "Drain {node} and have the device replaced",
};

/** What would be done, as one sentence without its full stop. */
export function wantsText(item: Pick<Remediation, "remedy" | "node" | "device">): string {
  const known = STEPS[item.remedy]?.replace("{node}", item.node);
  const text = known ?? `${lookOf(remedy, item.remedy).label} on ${item.node}`;
  return item.device && item.device !== "host" && item.remedy === "reset_gpu"
    ? text.replace("the GPU", deviceName(item.device))
    : text;
}

/** The rule that decided: the first that denies, else the first that holds, else none. */
export function decisiveRule(rules: Remediation["rules"]): Remediation["rules"][number] | null {
  return (
    rules.find((rule) => rule.verdict === "deny") ?? rules.find((rule) => rule.verdict === "hold") ?? null
  );
}

/** A denial is not a matter of opinion: as things stand, a person cannot accept it either. */
export const isDenied = (item: Pick<Remediation, "rules">) =>
  item.rules.some((rule) => rule.verdict === "deny");

/** Waiting first, then newest: what a person came for. */
export function byUrgency(items: readonly Remediation[]): Remediation[] {
  return [...items].sort(
    (a, b) => Number(isWaiting(b)) - Number(isWaiting(a)) || b.created_at - a.created_at,
  );
}

/** "3 of at most 12 nodes in the last 10 min": what the breaker counts. */
export function breakerText(breaker: Breaker): string {
  const most = Math.max(1, Math.floor(breaker.share_limit * breaker.fleet));
  return `${integer(breaker.touched)} of at most ${plural(most, "node")} (${percent(breaker.share_limit, 0)} of ${integer(breaker.fleet)}) in ${age(breaker.window_seconds)}, at most ${integer(breaker.rack_limit)} in a rack`;
}
