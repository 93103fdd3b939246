import type { IncidentState } from "@/api/types";
import { oneOf, type RawSearch, text } from "@/lib/search";
import { incidentOrder } from "@/lib/status-styles";
import { type Cause, causeNames } from "./cause";

export interface IncidentsSearch {
  state?: IncidentState;
  cause?: Cause;
  job?: string;
  node?: string;
  sort?: string;
}

export const parseIncidentsSearch = (raw: RawSearch): IncidentsSearch => ({
  state: oneOf(raw, "state", incidentOrder),
  cause: oneOf(raw, "cause", causeNames),
  job: text(raw, "job"),
  node: text(raw, "node"),
  sort: text(raw, "sort"),
});
