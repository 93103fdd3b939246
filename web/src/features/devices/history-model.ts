/** The history of a device by topic, style, and day. */
import type { HistoryEntry } from "@/api/types";
import { humanize } from "@/lib/format";
import { type GlyphName, severity, statusStyleOf, type Tone, verdict } from "@/lib/status-styles";
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
      return word ? statusStyleOf(verdict, word) : { tone: "unknown", glyph: "question" };
    }
    case "remediation":
      return { tone: "draining", glyph: "half" };
    case "transition":
      return { tone: "draining", glyph: "down" };
    default:
      return entry.severity === null
        ? { tone: "unknown", glyph: "dot" }
        : statusStyleOf(severity, entry.severity);
  }
}

/** Count the entries of each topic, so that empty topics are not offered. */
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

/** Group entries by day, newest first. */
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

/** Return the heading of an entry: identifiers are formatted, other titles are text. */
export function entryTitle(entry: Pick<HistoryEntry, "kind" | "title">): string {
  if (entry.title === "") return humanize(entry.kind);
  if (["finding", "event", "remediation"].includes(entry.kind)) return humanize(entry.title);
  return entry.title.charAt(0).toUpperCase() + entry.title.slice(1);
}
