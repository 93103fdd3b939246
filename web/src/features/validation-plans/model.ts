/** Texts of a validation plan. */
import type { components } from "@/api/schema";
import type { ValidationPlan } from "@/api/types";
import { names } from "@/features/validation/sweep-form";
import { age, percent, plural } from "@/lib/format";

type Create = components["schemas"]["ValidationPlanCreate"];
export type Considered = ValidationPlan["considered"][number];

export interface PlanFields {
  nodes: string;
  jobHours: string;
  /** The highest accepted risk in percent. */
  targetPercent: string;
  worthNodeHours: string;
  suite: string;
  /** Use one set for all nodes, so that they can be compared. */
  uniform: boolean;
}

export function planBody(fields: PlanFields): Create {
  return {
    nodes: names(fields.nodes),
    job_hours: Number(fields.jobHours),
    target_risk: Number(fields.targetPercent) / 100,
    worth_node_hours: fields.worthNodeHours.trim() === "" ? null : Number(fields.worthNodeHours),
    trigger: "manual",
    suite: fields.suite,
    uniform: fields.uniform,
    order: false, // a plan starts no validations
    remeasure: 0,
  };
}

/** Order benchmarks: chosen ones as they run, then the others by gain. */
export function auditOrder(plan: Pick<ValidationPlan, "considered" | "benchmarks">): Considered[] {
  const place = (one: Considered) => {
    const at = plan.benchmarks.indexOf(one.benchmark);
    return at < 0 ? plan.benchmarks.length : at;
  };
  return [...plan.considered].sort((a, b) => place(a) - place(b) || b.gain - a.gain);
}

/** Return the plan in one sentence. */
export function headline(plan: ValidationPlan): string {
  if (plan.benchmarks.length === 0) return "No validation needed.";
  const where =
    plan.run_on.length === plan.nodes.length
      ? `on all ${plural(plan.nodes.length, "node")}`
      : `on ${plan.run_on.length} of ${plural(plan.nodes.length, "node")}`;
  return `Run ${plural(plan.benchmarks.length, "benchmark")} ${where}, about ${age(plan.seconds)} per node.`;
}

/** Return the benchmarks of a node as text. */
export function setText(plan: Pick<ValidationPlan, "per_node" | "sets">, node: string): string {
  const set = plan.sets[node];
  if (set === undefined) return "no validation needed";
  return set.length === 0 ? "none" : set.join(", ");
}

/** Return the risk as text; unknown if there is too little history. */
export const riskText = (plan: Pick<ValidationPlan, "learned">, risk: number) =>
  plan.learned ? percent(risk) : "unknown";
