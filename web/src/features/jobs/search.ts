import { rankSignalNames } from "@/features/run-analysis/rank-signals";
import { natural, oneOf, type RawSearch } from "@/lib/search";

export const jobTabs = ["overview", "progress", "signals", "transfers", "checkpoints"] as const;
export type JobTab = (typeof jobTabs)[number];

export const rankMetrics = ["step", "compute", "peers"] as const;
export type RankMetric = (typeof rankMetrics)[number];

export interface JobSearch {
  tab?: JobTab;
  by?: RankMetric;
  signal?: string;
  rank?: number;
  from?: number;
  to?: number;
  step?: number;
}

export const parseJobSearch = (raw: RawSearch): JobSearch => ({
  tab: oneOf(raw, "tab", jobTabs),
  by: oneOf(raw, "by", rankMetrics),
  signal: oneOf(raw, "signal", rankSignalNames),
  rank: natural(raw, "rank"),
  from: natural(raw, "from"),
  to: natural(raw, "to"),
  step: natural(raw, "step"),
});
