/** How notifications are named and styled. */
import type { DeliveryState, NotificationRoute } from "@/api/types";
import { duration } from "@/lib/format";
import type { StatusStyle } from "@/lib/status-styles";

export const deliveryStyles: Record<DeliveryState, StatusStyle> = {
  pending: { label: "Pending", tone: "suspect", glyph: "half", about: "Sent again until it is accepted" },
  delivered: { label: "Delivered", tone: "healthy", glyph: "check", about: "The receiver accepted it" },
  failed: { label: "Failed", tone: "quarantined", glyph: "cross", about: "Refused, or not accepted in time" },
};

/** When a route matches, as short phrases. */
export function conditionsOf(route: NotificationRoute): string[] {
  const hours = route.hours ? [`${route.hours} ${route.timezone}`] : [];
  return [`severity ${route.min_severity} or more`, ...route.conditions, ...hours];
}

/** What a route does after the first message, as short phrases. */
export function timingOf(route: NotificationRoute): string[] {
  const group = route.group_by.length === 0 ? "all" : route.group_by.join(" and ");
  const phrases = [group === "incident" ? "each incident alone" : `grouped by ${group}`];
  if (route.repeat_minutes > 0) phrases.push(`repeated every ${duration(route.repeat_minutes * 60)}`);
  if (route.escalate_minutes > 0) {
    const after = duration(route.escalate_minutes * 60);
    phrases.push(`to ${route.escalate_to.join(", ")} after ${after} without acknowledgement`);
  }
  return phrases;
}
