import { type RawSearch, text } from "@/lib/search";

export interface WhatIfSearch {
  /** The job whose shape fills the form. */
  job?: string;
}

export const parseWhatIfSearch = (raw: RawSearch): WhatIfSearch => ({ job: text(raw, "job") });
