import { oneOf, type RawSearch, text } from "@/lib/search";

export const validationTabs = ["results", "sweeps", "suites"] as const;
export type ValidationTab = (typeof validationTabs)[number];

export interface ValidationSearch {
  tab?: ValidationTab;
  node?: string;
  sweep?: string;
}

export const parseValidationSearch = (raw: RawSearch): ValidationSearch => ({
  tab: oneOf(raw, "tab", validationTabs),
  node: text(raw, "node"),
  sweep: text(raw, "sweep"),
});
