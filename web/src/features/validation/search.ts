import { number, oneOf, type RawSearch, text } from "@/lib/search";

export const validationTabs = [
  "results",
  "sweeps",
  "suites",
  "localisation",
  "compare",
  "admission",
  "plans",
] as const;
export type ValidationTab = (typeof validationTabs)[number];

export interface ValidationSearch {
  tab?: ValidationTab;
  node?: string;
  sweep?: string;
  /** The plan that is shown. */
  plan?: string;
  /** Cohorts that are compared, and the moment that parts their runs. */
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

export interface PastSearch {
  /** The earlier validation; without it, the last that measured something. */
  before?: string;
}

export const parsePastSearch = (raw: RawSearch): PastSearch => ({ before: text(raw, "before") });

export interface RunSearch {
  run?: string;
}

export const parseRunSearch = (raw: RawSearch): RunSearch => ({ run: text(raw, "run") });

export interface CriterionSearch {
  cohort?: string;
  benchmark?: string;
  metric?: string;
  /** The run that the page is about. */
  validation?: string;
}

export const parseCriterionSearch = (raw: RawSearch): CriterionSearch => ({
  cohort: text(raw, "cohort"),
  benchmark: text(raw, "benchmark"),
  metric: text(raw, "metric"),
  validation: text(raw, "validation"),
});
