/** Stack dumps of suspect ranks, as their events carry them. Events may hold anything, so everything is checked. Pure. */
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
  /** A suspect, rather than a rank asked for comparison. */
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

type Told = Pick<FleetEvent, "time" | "rank" | "node" | "data">;

export function stackDump(id: string, { time, rank, node, data }: Told): StackDump {
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

/** The history keeps what matters of a dump. */
function fromEntry({ time, data }: TimelineEntry): Told {
  const rank = typeof data.rank === "number" ? data.rank : null;
  return { time, rank, node: text(data.node) || null, data };
}

export const isDump = (entry: Pick<TimelineEntry, "kind">) => entry.kind === "stack_dump";

/**
 * The dumps in an incident's history, suspects first. The service decides which belong to it; their events, where they
 * are still kept, say more: who was suspected, and why there may be no stacks.
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
