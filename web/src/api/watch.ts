/** Server-sent events: one connection for the page; every message says which questions to ask again. */
import { type QueryClient, useQueryClient } from "@tanstack/react-query";
import { useEffect, useReducer } from "react";
import {
  initialWatch,
  retryDelay,
  TopicBuffer,
  topics,
  type WatchFact,
  type WatchState,
  watchReducer,
} from "./watch-state";

const FLUSH_MS = 1000; // people read no faster, and a frame arrives every second
const nowSeconds = () => Date.now() / 1000;

export function useWatch(enabled: boolean): WatchState {
  const queryClient = useQueryClient();
  const [state, report] = useReducer(watchReducer, undefined, () => initialWatch(nowSeconds()));
  useEffect(() => (enabled ? watch(queryClient, report) : undefined), [enabled, queryClient]);
  return state;
}

/** Opens the stream and keeps it open; returns how to end it. */
function watch(queryClient: QueryClient, report: (fact: WatchFact) => void): () => void {
  let source: EventSource | undefined;
  let retry: ReturnType<typeof setTimeout> | undefined;
  let attempts = 0;
  const buffer = new TopicBuffer();

  function connect() {
    source = new EventSource(`/v1/watch?topics=${topics.join(",")}`);
    source.onopen = () => {
      // Whatever happened while nobody listened is fetched anew, so no missed message can leave a wrong picture.
      if (attempts > 0) void queryClient.invalidateQueries();
      attempts = 0;
      report({ type: "open", at: nowSeconds() });
    };
    for (const topic of topics) {
      source.addEventListener(topic, () => {
        buffer.add(topic);
        report({ type: "message", at: nowSeconds() });
      });
    }
    // "reset": too much was missed for a replay.
    source.addEventListener("reset", () => void queryClient.invalidateQueries());
    source.onerror = onError;
  }

  function onError() {
    attempts += 1;
    report({ type: "broken", at: nowSeconds() });
    // CONNECTING means that the browser retries by itself, with Last-Event-ID; CLOSED means that it gave up.
    if (source?.readyState !== EventSource.CLOSED) return;
    clearTimeout(retry);
    retry = setTimeout(connect, retryDelay(attempts, Math.random()) * 1000);
  }

  const flush = setInterval(() => {
    for (const root of buffer.drain()) void queryClient.invalidateQueries({ queryKey: [root] });
  }, FLUSH_MS);
  connect();
  return () => {
    clearInterval(flush);
    clearTimeout(retry);
    source?.close();
  };
}
