import type { HealthState, NodeSort } from "@/api/types";
import { oneOf, type RawSearch, text } from "@/lib/search";
import { healthOrder } from "@/lib/status-styles";

export interface FleetSearch {
  signal?: string;
  /** The state that the map shows at full opacity. */
  highlight?: HealthState;
  state?: HealthState;
  rack?: string;
  cohort?: string;
  job?: string;
  q?: string;
  sort?: NodeSort;
}

/** Columns that the service sorts by; `-` reverses the order. */
const columns = ["name", "state", "rack", "cohort", "last_seen", "incidents"] as const;
const sorts: readonly NodeSort[] = columns.flatMap((name) => [name, `-${name}`] as const);

export const parseFleetSearch = (raw: RawSearch): FleetSearch => ({
  signal: text(raw, "signal"),
  highlight: oneOf(raw, "highlight", healthOrder),
  state: oneOf(raw, "state", healthOrder),
  q: text(raw, "q"),
  rack: text(raw, "rack"),
  cohort: text(raw, "cohort"),
  job: text(raw, "job"),
  sort: oneOf(raw, "sort", sorts),
});
