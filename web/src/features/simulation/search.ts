import { type RawSearch, text } from "@/lib/search";

export interface SimulationSearch {
  /** The job that fills the form. */
  job?: string;
}

export const parseSimulationSearch = (raw: RawSearch): SimulationSearch => ({ job: text(raw, "job") });
