/** The kinds of requests to a job, what each needs, and why it may not be possible now. */
import type { Job, JobRequest } from "@/api/types";
import type { PickerOption } from "@/ui/picker";

export type RequestKind = JobRequest["kind"];

export const kinds: Record<
  RequestKind,
  { label: string; about: string; names: "any" | "node" | "shape" | "" }
> = {
  migrate: {
    label: "Migrate ranks",
    about: "Ranks move to warm standbys on other nodes. Training pauses for a moment.",
    names: "any",
  },
  restore: {
    label: "Restore ranks",
    about: "Their processes restart from the newest snapshots. A node that the job left is used again.",
    names: "any",
  },
  degrade: {
    label: "Continue without a node",
    about: "Standbys replace its ranks. If there are too few, training continues without them, more slowly.",
    names: "node",
  },
  reshape: {
    label: "Change the shape",
    about:
      "All ranks restart with other numbers of replicas, stages, and tensor-parallel ranks, from a checkpoint of this step.",
    names: "shape",
  },
  save: {
    label: "Save a checkpoint",
    about: "One of the next steps is written to the checkpoint directory.",
    names: "",
  },
  check: {
    label: "Compare the speed of ranks",
    about:
      "They and their peers on other nodes run the same kernels between two steps. Training pauses for about a second.",
    names: "any",
  },
};

/** What a request is about, in words. */
export function subjectOf(one: JobRequest): string {
  const what = kinds[one.kind]?.label ?? one.kind;
  if (one.kind === "reshape") {
    const { dp, pp, tp } = one;
    const stages = one.stages.length ? [`stages ${one.stages.join(", ")}`] : [];
    const sizes = Object.entries({ dp, pp, tp }).filter(([, size]) => size);
    return `${what}: ${[...stages, ...sizes.map(([name, size]) => `${name} ${size}`)].join(", ")}`;
  }
  const where = one.node ?? (one.rank === null ? "" : `rank ${one.rank}`);
  return `${what}${where && `: ${where}`}${one.target ? ` to ${one.target}` : ""}`;
}

/** Why the job cannot do it now; empty if it can, or if it does not say. */
export function obstacleTo(job: Job, kind: RequestKind): string {
  return job.request_obstacles?.[kind] ?? "";
}

/** Nodes, and ranks where the kind allows, that a request may name. */
export function subjects(job: Job, names: "any" | "node"): PickerOption[] {
  const { ranks, standbys } = job.topology;
  const nodes = [...new Set([...ranks.map((place) => place.node), ...Object.keys(standbys ?? {})])].sort();
  const named = nodes.map((node) => ({ value: `node:${node}`, label: node, group: "Nodes" }));
  if (names === "node") return named;
  return [
    ...named,
    ...ranks.map((place) => ({
      value: `rank:${place.rank}`,
      label: `rank ${place.rank}`,
      group: "Ranks",
      note: place.node,
    })),
  ];
}

/** The part of the request that names it. */
export function named(value: string): { node: string } | { rank: number } | Record<string, never> {
  const [what, ...rest] = value.split(":");
  if (what === "node") return { node: rest.join(":") };
  return what === "rank" ? { rank: Number(rest[0]) } : {};
}
