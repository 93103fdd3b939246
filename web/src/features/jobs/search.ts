import { natural, oneOf, type RawSearch } from "@/lib/search";

export const rankMetrics = ["step", "compute", "peers"] as const;
export type RankMetric = (typeof rankMetrics)[number];

export interface JobSearch {
  by?: RankMetric;
  rank?: number;
  from?: number;
  to?: number;
}

export const parseJobSearch = (raw: RawSearch): JobSearch => ({
  by: oneOf(raw, "by", rankMetrics),
  rank: natural(raw, "rank"),
  from: natural(raw, "from"),
  to: natural(raw, "to"),
});
