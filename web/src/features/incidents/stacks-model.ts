/** Stack dumps of suspect ranks, read from events. Event data has no schema, so every field is checked. */
import type { FleetEvent, IncidentDetail, TimelineEntry } from "@/api/types";

export interface ThreadStack {
  thread: string;
  /** Innermost first. */
  frames: string[];
}

export interface StackDump {
  id: string;
  time: number;
  rank: number | null;
  node: string | null;
  reason: string;
  tool: string;
  /** Whether the rank is a suspect, not one dumped for comparison. */
  suspect: boolean;
  process: string;
  problem: string;
  stacks: ThreadStack[];
}

const text = (value: unknown): string => (typeof value === "string" ? value : "");

function threads(value: unknown): ThreadStack[] {
  if (!Array.isArray(value)) return [];
  return value.flatMap((entry: unknown) => {
    if (typeof entry !== "object" || entry === null) return [];
    const { thread, frames } = entry as Record<string, unknown>;
    const lines = Array.isArray(frames) ? frames.filter((f): f is string => typeof f === "string") : [];
    return [{ thread: text(thread) || "a thread", frames: lines }];
  });
}

type DumpSource = Pick<FleetEvent, "time" | "rank" | "node" | "data">;

export function stackDump(id: string, { time, rank, node, data }: DumpSource): StackDump {
  return {
    id,
    time,
    rank,
    node,
    reason: text(data.reason),
    tool: text(data.tool),
    suspect: data.suspect === true,
    process: text(data.process),
    problem: text(data.problem),
    stacks: threads(data.stacks),
  };
}

/** The history contains the main fields of a dump. */
function fromEntry({ time, data }: TimelineEntry): DumpSource {
  const rank = typeof data.rank === "number" ? data.rank : null;
  return { time, rank, node: text(data.node) || null, data };
}

export const isDump = (entry: Pick<TimelineEntry, "kind">) => entry.kind === "stack_dump";

/**
 * Return the dumps in an incident's history, suspects first. Their events, while they are kept, add which rank was a
 * suspect and why stacks may be missing.
 */
export function dumpsOf(
  incident: Pick<IncidentDetail, "timeline">,
  events: readonly FleetEvent[],
): StackDump[] {
  const known = new Map(events.map((event) => [event.id, event]));
  return incident.timeline
    .filter(isDump)
    .map((entry, index) => {
      const id = text(entry.data.event);
      return stackDump(id || `entry${index}`, known.get(id) ?? fromEntry(entry));
    })
    .sort(
      (a, b) => Number(b.suspect) - Number(a.suspect) || (a.rank ?? 0) - (b.rank ?? 0) || b.time - a.time,
    );
}

export const asText = (dump: StackDump): string =>
  [
    `rank ${dump.rank ?? "?"} on ${dump.node ?? "?"}${dump.reason ? `: ${dump.reason}` : ""}`,
    ...dump.stacks.flatMap((stack) => ["", stack.thread, ...stack.frames.map((frame) => `  ${frame}`)]),
  ].join("\n");
