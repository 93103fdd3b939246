/** A device's history as topics to filter by, as looks, and as days. Pure. */
import type { HistoryEntry } from "@/api/types";
import { humanize } from "@/lib/format";
import { type GlyphName, lookOf, severity, type Tone, verdict } from "@/lib/states";
import type { DeviceSearch, Topic } from "./search";

export const topicLabels: Record<Topic, string> = {
  finding: "Findings",
  event: "Events",
  move: "Moves",
  transition: "States of its node",
  verdict: "Validations",
  remediation: "Remediations",
};

export function entryLook(entry: HistoryEntry): { tone: Tone; glyph: GlyphName } {
  switch (entry.kind) {
    case "move":
      return { tone: "validating", glyph: "ring" };
    case "verdict": {
      const word = /\b(pass|warn|fail|unknown)\b/i.exec(`${entry.title} ${entry.text}`)?.[1]?.toLowerCase();
      return word ? lookOf(verdict, word) : { tone: "unknown", glyph: "question" };
    }
    case "remediation":
      return { tone: "draining", glyph: "half" };
    case "transition":
      return { tone: "draining", glyph: "down" };
    default:
      return entry.severity === null ? { tone: "unknown", glyph: "dot" } : lookOf(severity, entry.severity);
  }
}

/** How many entries of each topic, so that an empty filter is not offered. */
export function topicCounts(entries: readonly HistoryEntry[]): Map<Topic, number> {
  const counts = new Map<Topic, number>();
  for (const { kind } of entries) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  return counts;
}

export function chosenEntries(entries: readonly HistoryEntry[], search: DeviceSearch): HistoryEntry[] {
  return entries.filter(
    (entry) => (!search.show || entry.kind === search.show) && (!search.node || entry.node === search.node),
  );
}

export interface Day {
  day: string;
  entries: HistoryEntry[];
}

const dayOf = (time: number) => {
  const d = new Date(time * 1000);
  const pad = (n: number) => String(n).padStart(2, "0");
  return `${d.getFullYear()}-${pad(d.getMonth() + 1)}-${pad(d.getDate())}`;
};

/** Newest day first, as the entries come. */
export function byDay(entries: readonly HistoryEntry[]): Day[] {
  const days: Day[] = [];
  for (const entry of entries) {
    const day = dayOf(entry.time);
    const last = days.at(-1);
    if (last?.day === day) last.entries.push(entry);
    else days.push({ day, entries: [entry] });
  }
  return days;
}

/** What happened, as a heading: kinds are identifiers, everything else is text with names in it. */
export function entryTitle(entry: Pick<HistoryEntry, "kind" | "title">): string {
  if (entry.title === "") return humanize(entry.kind);
  if (["finding", "event", "remediation"].includes(entry.kind)) return humanize(entry.title);
  return entry.title.charAt(0).toUpperCase() + entry.title.slice(1);
}
