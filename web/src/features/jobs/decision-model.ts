/** The strategies evaluated at a failure as rows to compare, and the accuracy of the prediction as text. */
import type { Recovery } from "@/api/types";
import { duration, humanize } from "@/lib/format";

/** In the order in which they occur. */
const PARTS = ["downtime", "repeated", "degraded", "rejoin", "risk", "readiness"];

type Decision = NonNullable<Recovery["decision"]>;
export type StrategyOption = Decision["options"][number];

export interface OptionRow {
  name: string;
  option: StrategyOption;
  /** The cheapest strategy that the job can execute. */
  chosen: boolean;
  /** The executed strategy. */
  done: boolean;
}

export interface EvaluationTable {
  possible: OptionRow[];
  impossible: OptionRow[];
  phases: string[];
  /** Seconds of a full-width bar. */
  scale: number;
}

export function strategyText(strategies: readonly string[]): string {
  const [first, ...then] = strategies;
  return [humanize(first ?? "none"), ...then.map((strategy) => humanize(strategy).toLowerCase())].join(
    ", then ",
  );
}

/** Return the coordinator's explanation with formatted strategy names. */
export function explanationText(decision: Decision): string {
  const strategies = new Set(decision.options.flatMap((option) => option.strategies));
  // Longest names first: one name may be part of another.
  const sorted = [...strategies].sort((a, b) => b.length - a.length);
  const text = sorted.reduce(
    (sentence, strategy) => sentence.replaceAll(strategy, strategy.replaceAll("_", " ")),
    decision.explanation,
  );
  return text.charAt(0).toUpperCase() + text.slice(1);
}

export function evaluationTable(decision: Decision, strategy: string | null): EvaluationTable {
  const rows = decision.options.map((option): OptionRow => {
    const chosen = decision.chosen !== null && option.strategies.join() === decision.chosen.join();
    const alone = decision.options.some((other) => other.feasible && other.strategies.join() === strategy);
    return {
      name: strategyText(option.strategies),
      option,
      chosen,
      done:
        strategy !== null &&
        (alone ? option.strategies.join() === strategy : option.strategies[0] === strategy),
    };
  });
  const possible = rows.filter((row) => row.option.feasible);
  return {
    possible,
    impossible: rows.filter((row) => !row.option.feasible),
    phases: PARTS.filter((part) => possible.some((row) => part in row.option.parts)),
    scale: Math.max(1e-6, ...possible.map((row) => row.option.expected_s ?? 0)),
  };
}

/** Return the excess cost as text; "none" if no alternative was cheaper. */
export function excessCostText(recovery: Pick<Recovery, "excess_cost_seconds">): string {
  const excessCost = recovery.excess_cost_seconds;
  if (excessCost === null) return "–";
  return excessCost === 0 ? "none" : duration(excessCost);
}

/** Compare prediction and measurement, both from the failure to the first committed step; null without either. */
export function predictionText(recovery: Pick<Recovery, "predicted_seconds" | "seconds">): string | null {
  const { predicted_seconds: predicted, seconds } = recovery;
  if (!predicted || seconds === null) return null;
  const times = seconds / predicted;
  const within = times <= 1.25 && times >= 0.8;
  return `Training resumed after ${duration(seconds)}; the prediction was ${duration(predicted)}. The recovery took ${times.toFixed(2)} times the prediction, ${within ? "within" : "outside"} the tolerance of 25%.`;
}
