import { oneOf, type RawSearch, text } from "@/lib/search";

export const validationTabs = ["results", "sweeps", "suites", "localisation", "admission", "plans"] as const;
export type ValidationTab = (typeof validationTabs)[number];

export interface ValidationSearch {
  tab?: ValidationTab;
  node?: string;
  sweep?: string;
  /** The plan that is shown. */
  plan?: string;
}

export const parseValidationSearch = (raw: RawSearch): ValidationSearch => ({
  tab: oneOf(raw, "tab", validationTabs),
  node: text(raw, "node"),
  sweep: text(raw, "sweep"),
  plan: text(raw, "plan"),
});

export interface RunSearch {
  run?: string;
}

export const parseRunSearch = (raw: RawSearch): RunSearch => ({ run: text(raw, "run") });

export interface CriterionSearch {
  cohort?: string;
  benchmark?: string;
  metric?: string;
}

export const parseCriterionSearch = (raw: RawSearch): CriterionSearch => ({
  cohort: text(raw, "cohort"),
  benchmark: text(raw, "benchmark"),
  metric: text(raw, "metric"),
});
