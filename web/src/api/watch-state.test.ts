import { describe, expect, it } from "vitest";
import { initialWatch, invalidates, retryDelay, TopicBuffer, topics, watchReducer } from "./watch-state";

describe("the live connection", () => {
  it("is live only after it opens", () => {
    const start = initialWatch(100);
    expect(start.status).toBe("connecting");
    const open = watchReducer(start, { type: "open", at: 101 });
    expect(open).toMatchObject({ status: "live", since: 101, attempts: 0 });
    expect(watchReducer(open, { type: "message", at: 150 })).toMatchObject({
      status: "live",
      since: 101,
      messages: 1,
    });
  });

  it("keeps the time since which the page may be stale, for any number of retries", () => {
    let state = watchReducer(initialWatch(0), { type: "open", at: 1 });
    state = watchReducer(state, { type: "broken", at: 50 });
    state = watchReducer(state, { type: "broken", at: 52 });
    state = watchReducer(state, { type: "broken", at: 56 });
    expect(state).toMatchObject({ status: "stale", since: 50, attempts: 3 });
    expect(watchReducer(state, { type: "open", at: 60 })).toMatchObject({
      status: "live",
      since: 60,
      attempts: 0,
    });
  });

  it("counts a message as a sign of life", () => {
    const stale = watchReducer(initialWatch(0), { type: "broken", at: 5 });
    expect(watchReducer(stale, { type: "message", at: 9 })).toMatchObject({ status: "live", since: 9 });
  });

  it("does not mutate", () => {
    const state = Object.freeze(initialWatch(0));
    watchReducer(state, { type: "broken", at: 1 });
    expect(state.status).toBe("connecting");
  });
});

describe("retryDelay", () => {
  it("doubles to a bound and is spread", () => {
    expect(retryDelay(1, 0.5)).toBeCloseTo(1);
    expect(retryDelay(4, 0.5)).toBeCloseTo(8);
    expect(retryDelay(50, 1)).toBeLessThanOrEqual(37.5);
    expect(retryDelay(1, 0)).toBeGreaterThan(0.5);
  });
});

describe("TopicBuffer", () => {
  it("refetches each root once per burst of messages", () => {
    const buffer = new TopicBuffer();
    for (let i = 0; i < 1000; i += 1) buffer.add("telemetry");
    buffer.add("incident");
    buffer.add("job");
    const roots = buffer.drain();
    expect(roots).toHaveLength(new Set(roots).size);
    expect(roots).toEqual(expect.arrayContaining(["telemetry", "incidents", "jobs", "overview"]));
    expect(buffer.drain()).toEqual([]);
  });

  it("maps every topic to query roots", () => {
    for (const topic of topics) expect(invalidates[topic].length).toBeGreaterThan(0);
  });
});
