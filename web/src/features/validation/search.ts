import { number, oneOf, type RawSearch, text } from "@/lib/search";

export const validationTabs = [
  "results",
  "sweeps",
  "suites",
  "localization",
  "compare",
  "admission",
  "plans",
] as const;
export type ValidationTab = (typeof validationTabs)[number];

export interface ValidationSearch {
  tab?: ValidationTab;
  node?: string;
  sweep?: string;
  /** The displayed plan. */
  plan?: string;
  /** The compared cohorts, and the time that separates their runs. */
  before?: string;
  after?: string;
  at?: number;
}

export const parseValidationSearch = (raw: RawSearch): ValidationSearch => ({
  tab: oneOf(raw, "tab", validationTabs),
  node: text(raw, "node"),
  sweep: text(raw, "sweep"),
  plan: text(raw, "plan"),
  before: text(raw, "before"),
  after: text(raw, "after"),
  at: number(raw, "at"),
});

export interface NodeComparisonSearch {
  /** The earlier validation; by default the last one with results. */
  before?: string;
}

export const parseNodeComparisonSearch = (raw: RawSearch): NodeComparisonSearch => ({
  before: text(raw, "before"),
});

export interface RunSearch {
  run?: string;
}

export const parseRunSearch = (raw: RawSearch): RunSearch => ({ run: text(raw, "run") });

export interface CriterionSearch {
  cohort?: string;
  benchmark?: string;
  metric?: string;
  /** The run of the page. */
  validation?: string;
}

export const parseCriterionSearch = (raw: RawSearch): CriterionSearch => ({
  cohort: text(raw, "cohort"),
  benchmark: text(raw, "benchmark"),
  metric: text(raw, "metric"),
  validation: text(raw, "validation"),
});
