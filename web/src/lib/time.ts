/** Clock times, and one ticking "now" that all ages share. */
import { useSyncExternalStore } from "react";

const pad = (n: number, width = 2) => String(n).padStart(width, "0");

export function clock(time: number | null | undefined, millis = false): string {
  if (time == null) return "–";
  const d = new Date(time * 1000);
  const base = `${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}`;
  return millis ? `${base}.${pad(d.getMilliseconds(), 3)}` : base;
}

const date = (d: Date) => `${d.getFullYear()}-${pad(d.getMonth() + 1)}-${pad(d.getDate())}`;

export const dateTime = (time: number) => `${date(new Date(time * 1000))} ${clock(time)}`;

/** Format a time; other days than today include the date. */
export function when(time: number | null | undefined, now: number): string {
  if (time == null) return "–";
  const d = new Date(time * 1000);
  const same = d.toDateString() === new Date(now * 1000).toDateString();
  return same ? clock(time) : `${date(d)} ${clock(time).slice(0, 5)}`;
}

export const iso = (time: number) => new Date(time * 1000).toISOString();

// Ages refer to the service's clock: a laptop clock that is a minute off must not add a minute.
let offset = 0;
export function learnServerTime(serverNow: number): void {
  offset = serverNow - Date.now() / 1000;
}
export const serverNow = () => Date.now() / 1000 + offset;

const listeners = new Set<() => void>();
let current = serverNow();
let timer: ReturnType<typeof setInterval> | undefined;

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  timer ??= setInterval(() => {
    current = serverNow();
    for (const l of listeners) l();
  }, 1000);
  return () => {
    listeners.delete(listener);
    if (listeners.size > 0) return;
    clearInterval(timer);
    timer = undefined;
  };
}

/** Unix seconds by the service's clock, renewed every second. */
export function useNow(): number {
  return useSyncExternalStore(subscribe, () => current);
}
