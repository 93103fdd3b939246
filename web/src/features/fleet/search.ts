import type { HealthState, NodeSort } from "@/api/types";
import { number, oneOf, type RawSearch, text } from "@/lib/search";
import { healthOrder } from "@/lib/status-styles";
import { type HistoryRange, historyRanges } from "./history-model";
import {
  type MapGroup,
  type MapHighlight,
  type MapZoom,
  mapGroups,
  mapHighlights,
  mapZooms,
} from "./map-model";

export interface FleetSearch {
  signal?: string;
  /** The state, or the severity of a device's finding, that the map shows at full opacity. */
  highlight?: MapHighlight;
  state?: HealthState;
  rack?: string;
  cohort?: string;
  job?: string;
  q?: string;
  sort?: NodeSort;
  /** The time that the map shows, in Unix seconds; absent: the present. */
  at?: number;
  /** The range of the history; absent: 24 hours. */
  range?: HistoryRange;
  /** How the map groups nodes; absent: by rack. */
  group?: MapGroup;
  /** How many times as large the map is drawn; absent: once. */
  zoom?: MapZoom;
}

/** Columns that the service sorts by; `-` reverses the order. */
const columns = ["name", "state", "rack", "cohort", "last_seen", "incidents"] as const;
const sorts: readonly NodeSort[] = columns.flatMap((name) => [name, `-${name}`] as const);

/** The service refuses other times. */
function moment(raw: RawSearch): number | undefined {
  const at = number(raw, "at");
  return at !== undefined && at >= 0 && at <= 253_402_300_799 ? at : undefined;
}

export const parseFleetSearch = (raw: RawSearch): FleetSearch => ({
  signal: text(raw, "signal"),
  highlight: oneOf(raw, "highlight", mapHighlights),
  state: oneOf(raw, "state", healthOrder),
  q: text(raw, "q"),
  rack: text(raw, "rack"),
  cohort: text(raw, "cohort"),
  job: text(raw, "job"),
  sort: oneOf(raw, "sort", sorts),
  at: moment(raw),
  range: oneOf(raw, "range", historyRanges),
  group: oneOf(raw, "group", Object.keys(mapGroups) as MapGroup[]),
  zoom: oneOf(raw, "zoom", mapZooms),
});
