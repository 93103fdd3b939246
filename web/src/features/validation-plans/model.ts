/** A plan of checks in words. Pure. */
import type { components } from "@/api/schema";
import type { ValidationPlan } from "@/api/types";
import { names } from "@/features/validation/sweep-form";
import { age, percent, plural } from "@/lib/format";

type Create = components["schemas"]["ValidationPlanCreate"];
export type Considered = ValidationPlan["considered"][number];

export interface PlanFields {
  nodes: string;
  jobHours: string;
  /** Highest risk that is accepted, in per cent. */
  targetPercent: string;
  worthNodeHours: string;
  suite: string;
  /** One set for all nodes, where they are to be compared. */
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
    order: false, // asking orders nothing
    again: 0,
  };
}

/** Chosen ones in the order in which they run, then the others by what they would have gained. */
export function auditOrder(plan: Pick<ValidationPlan, "considered" | "benchmarks">): Considered[] {
  const place = (one: Considered) => {
    const at = plan.benchmarks.indexOf(one.benchmark);
    return at < 0 ? plan.benchmarks.length : at;
  };
  return [...plan.considered].sort((a, b) => place(a) - place(b) || b.gain - a.gain);
}

/** What to do, in one sentence. */
export function headline(plan: ValidationPlan): string {
  if (plan.benchmarks.length === 0) return "No check is needed.";
  const where =
    plan.run_on.length === plan.nodes.length
      ? `on all ${plural(plan.nodes.length, "node")}`
      : `on ${plan.run_on.length} of ${plural(plan.nodes.length, "node")}`;
  return `Run ${plural(plan.benchmarks.length, "benchmark")} ${where}, about ${age(plan.seconds)} a node.`;
}

/** What runs on a node, in words. */
export function setText(plan: Pick<ValidationPlan, "per_node" | "sets">, node: string): string {
  const set = plan.sets[node];
  if (set === undefined) return "may start as it is";
  return set.length === 0 ? "nothing" : set.join(", ");
}

/** Too little history means that the risk is not known, whatever number stands there. */
export const riskText = (plan: Pick<ValidationPlan, "learned">, risk: number) =>
  plan.learned ? percent(risk) : "unknown";
