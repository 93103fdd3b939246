/** Server-sent events: one connection per page. Every message names the queries to refetch. */
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

const FLUSH_MS = 1000; // a frame arrives every second, and readers need no faster updates
const nowSeconds = () => Date.now() / 1000;

export function useWatch(enabled: boolean): WatchState {
  const queryClient = useQueryClient();
  const [state, report] = useReducer(watchReducer, undefined, () => initialWatch(nowSeconds()));
  useEffect(() => (enabled ? watch(queryClient, report) : undefined), [enabled, queryClient]);
  return state;
}

/** Open the stream and keep it open; return a function that closes it. */
function watch(queryClient: QueryClient, report: (fact: WatchFact) => void): () => void {
  let source: EventSource | undefined;
  let retry: ReturnType<typeof setTimeout> | undefined;
  let attempts = 0;
  const buffer = new TopicBuffer();

  function connect() {
    source = new EventSource(`/v1/watch?topics=${topics.join(",")}`);
    source.onopen = () => {
      // Messages may have been missed while the stream was closed, so every query is fetched again.
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
    // "reset": the service cannot replay all missed messages.
    source.addEventListener("reset", () => void queryClient.invalidateQueries());
    source.onerror = onError;
  }

  function onError() {
    attempts += 1;
    report({ type: "broken", at: nowSeconds() });
    // CONNECTING: the browser retries automatically, with Last-Event-ID. CLOSED: it stopped retrying.
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
