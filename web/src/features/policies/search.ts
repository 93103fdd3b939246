import { oneOf, type RawSearch, text } from "@/lib/search";

export const policyTabs = ["rules", "overrides", "versions", "shadow"] as const;
export type PolicyTab = (typeof policyTabs)[number];

export interface PolicySearch {
  tab?: PolicyTab;
  q?: string;
  /** The filter; by default rules with a meaning, or all rules during a search. */
  only?: "all" | "xid" | "sxid" | "overridden" | "evicts";
  sort?: string;
}

export interface DetectorSearch {
  q?: string;
  /** The detector whose details are shown. */
  detector?: string;
}

export const parseDetectorSearch = (raw: RawSearch): DetectorSearch => ({
  q: text(raw, "q"),
  detector: text(raw, "detector"),
});

export const parsePolicySearch = (raw: RawSearch): PolicySearch => ({
  tab: oneOf(raw, "tab", policyTabs),
  q: text(raw, "q"),
  only: oneOf(raw, "only", ["all", "xid", "sxid", "overridden", "evicts"] as const),
  sort: text(raw, "sort"),
});
