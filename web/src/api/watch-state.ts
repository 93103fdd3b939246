/**
 * What the live connection is worth, as a pure reducer: the socket code only reports facts to it.
 *
 * "Live" is a claim about now, so it is lost the moment the stream breaks, and the time of the last good moment is
 * kept: frozen data is shown with its age, never as if it were current.
 */
export type WatchStatus = "connecting" | "live" | "stale" | "refused";

export interface WatchState {
  status: WatchStatus;
  /** Unix seconds of the change into this status; for "stale", since when what is on screen may be out of date. */
  since: number;
  /** Broken connections since the last good one; drives the wait before the next. */
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
      // A first connection that never stood has shown nothing that could be stale until it failed.
      return { ...state, status: "stale", since: fact.at, attempts };
    }
    case "refused":
      return { ...state, status: "refused", since: fact.at, attempts: state.attempts + 1 };
  }
}

/** Seconds before attempt n (1-based): doubling from 1 s to 30 s, spread so that a fleet of tabs does not knock at once. */
export function retryDelay(attempts: number, random: number): number {
  const base = Math.min(30, 2 ** Math.max(0, attempts - 1));
  return base * (0.75 + 0.5 * random);
}

export const topics = ["incident", "node", "job", "validation", "event", "remediation", "telemetry"] as const;
export type Topic = (typeof topics)[number];

/** The query-key roots that a topic makes out of date. */
export const invalidates: Record<Topic, readonly string[]> = {
  incident: ["incidents", "overview", "nodes", "jobs", "remediations", "findings", "judgement"],
  node: ["nodes", "overview", "layout", "snapshot", "remediations"],
  job: ["jobs", "overview", "steps"],
  validation: ["validations", "sweeps", "localisations", "nodes"],
  event: ["events", "incidents", "overview"],
  remediation: ["remediations", "overview", "incidents"],
  telemetry: ["telemetry", "snapshot", "steps"],
};

/** Collects topics and gives out each at most once per period: a burst of frames is one refetch. */
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
