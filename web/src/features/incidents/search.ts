import type { IncidentState } from "@/api/types";
import { oneOf, type RawSearch, text } from "@/lib/search";
import { incidentOrder } from "@/lib/states";

export interface IncidentsSearch {
  state?: IncidentState;
  job?: string;
  node?: string;
  sort?: string;
}

export const parseIncidentsSearch = (raw: RawSearch): IncidentsSearch => ({
  state: oneOf(raw, "state", incidentOrder),
  job: text(raw, "job"),
  node: text(raw, "node"),
  sort: text(raw, "sort"),
});
