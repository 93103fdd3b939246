import type { HealthState } from "@/api/types";
import { oneOf, type RawSearch, text } from "@/lib/search";
import { healthOrder } from "@/lib/status-styles";

export interface FleetSearch {
  signal?: string;
  state?: HealthState;
  q?: string;
  sort?: string;
}

export const parseFleetSearch = (raw: RawSearch): FleetSearch => ({
  signal: text(raw, "signal"),
  state: oneOf(raw, "state", healthOrder),
  q: text(raw, "q"),
  sort: text(raw, "sort"),
});
