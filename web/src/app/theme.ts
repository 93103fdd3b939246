/** The light, dark, or system theme, stored in this browser and applied as an attribute of the document. */
import { useSyncExternalStore } from "react";

export type ThemeChoice = "system" | "light" | "dark";
const KEY = "mainstay.theme";
const listeners = new Set<() => void>();
const media = typeof window === "undefined" ? undefined : window.matchMedia("(prefers-color-scheme: dark)");

function read(): ThemeChoice {
  try {
    const value = localStorage.getItem(KEY);
    return value === "light" || value === "dark" ? value : "system";
  } catch {
    return "system"; // without storage, the choice lasts as long as the page
  }
}

let choice: ThemeChoice = typeof window === "undefined" ? "system" : read();

function apply(): void {
  if (choice === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
  for (const listener of listeners) listener();
}

export function startTheme(): void {
  apply();
  media?.addEventListener("change", apply);
}

export function setTheme(next: ThemeChoice): void {
  choice = next;
  try {
    if (next === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, next);
  } catch {
    // as above
  }
  apply();
}

const isDark = () => (choice === "system" ? (media?.matches ?? false) : choice === "dark");

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export const useThemeChoice = () => useSyncExternalStore(subscribe, () => choice);
/** Whether the theme is dark; canvases redraw when it changes. */
export const useDark = () => useSyncExternalStore(subscribe, isDark);
