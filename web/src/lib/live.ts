/** The polling interval. Events trigger refetches; polling covers missed events. */
import { createContext, useContext } from "react";
import { initialWatch, type WatchState } from "@/api/watch-state";

export const LiveContext = createContext<WatchState>(initialWatch(0));
export const useLive = () => useContext(LiveContext);

/** Milliseconds between safety refetches. */
export function usePolling(live = 20_000, silent = 5_000): number {
  return useLive().status === "live" ? live : silent;
}
