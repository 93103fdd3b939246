import { oneOf, type RawSearch, text } from "@/lib/search";

export const topics = ["finding", "event", "move", "transition", "verdict", "remediation"] as const;
/** The kinds of entry. */
export type Topic = (typeof topics)[number];

export interface DeviceSearch {
  show?: Topic;
  node?: string;
}

export const parseDeviceSearch = (raw: RawSearch): DeviceSearch => ({
  show: oneOf(raw, "show", topics),
  node: text(raw, "node"),
});
