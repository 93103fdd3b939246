/**
 * The state of the live connection, as a pure reducer. The socket code only reports facts to it.
 *
 * The status leaves "live" as soon as the stream breaks, and the state keeps that time. Pages then show old data with
 * its age.
 */
export type WatchStatus = "connecting" | "live" | "stale" | "refused";

export interface WatchState {
  status: WatchStatus;
  /** Unix seconds of the change into this status; for "stale", the time since which the page may be out of date. */
  since: number;
  /** Broken connections since the last good one; sets the wait before the next attempt. */
  attempts: number;
  /** Messages since the page was opened. */
  messages: number;
}

export type WatchFact =
  | { type: "open"; at: number }
  | { type: "message"; at: number }
  | { type: "broken"; at: number }
  | { type: "refused"; at: number };

export function initialWatch(at: number): WatchState {
  return { status: "connecting", since: at, attempts: 0, messages: 0 };
}

export function watchReducer(state: WatchState, fact: WatchFact): WatchState {
  switch (fact.type) {
    case "open":
      return { ...state, status: "live", since: fact.at, attempts: 0 };
    case "message": {
      const messages = state.messages + 1;
      if (state.status === "live") return { ...state, messages };
      return { status: "live", since: fact.at, attempts: 0, messages };
    }
    case "broken": {
      const attempts = state.attempts + 1;
      if (state.status === "stale") return { ...state, attempts };
      // A connection that never opened has shown no data before it failed.
      return { ...state, status: "stale", since: fact.at, attempts };
    }
    case "refused":
      return { ...state, status: "refused", since: fact.at, attempts: state.attempts + 1 };
  }
}

/** Seconds before attempt n (1-based): doubling from 1 s to 30 s, spread so that many tabs do not reconnect together. */
export function retryDelay(attempts: number, random: number): number {
  const base = Math.min(30, 2 ** Math.max(0, attempts - 1));
  return base * (0.75 + 0.5 * random);
}

export const topics = ["incident", "node", "job", "validation", "event", "remediation", "telemetry"] as const;
export type Topic = (typeof topics)[number];

/** The query-key roots that a topic makes out of date. */
export const invalidates: Record<Topic, readonly string[]> = {
  incident: ["incidents", "overview", "nodes", "jobs", "remediations", "findings", "detectors", "snapshot"],
  node: ["nodes", "overview", "layout", "snapshot", "remediations"],
  job: ["jobs", "overview", "steps"],
  validation: ["validations", "sweeps", "localizations", "nodes"],
  event: ["events", "incidents", "overview"],
  remediation: ["remediations", "overview", "incidents"],
  telemetry: ["telemetry", "snapshot", "steps"],
};

/** Collects topics and returns each at most once per period, so a burst of frames causes one refetch. */
export class TopicBuffer {
  private waiting = new Set<Topic>();

  add(topic: Topic): void {
    this.waiting.add(topic);
  }

  /** Query-key roots to invalidate now, each once. */
  drain(): string[] {
    const roots = new Set<string>();
    for (const topic of this.waiting) for (const root of invalidates[topic]) roots.add(root);
    this.waiting.clear();
    return [...roots];
  }
}
