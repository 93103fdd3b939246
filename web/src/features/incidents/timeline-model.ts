/** The history as rows: time, offset from the opening, text. */
import type { IncidentDetail, TimelineEntry } from "@/api/types";
import type { GlyphName, Tone } from "@/lib/status-styles";

export interface TimelineRow {
  key: string;
  entry: TimelineEntry;
  /** Seconds after the incident opened; negative for earlier events. */
  offset: number;
  tone: Tone;
  glyph: GlyphName;
  turning: boolean;
}

const LOOKS: [RegExp, Tone, GlyphName][] = [
  [/cleared|quiet|^closed?$/, "unknown", "dot"],
  [/stack_dump|flight_recorder/, "validating", "bars"],
  [/fail|lost|exit|xid|opened/, "quarantined", "bang"],
  [/finding|suspect|silent/, "suspect", "triangle"],
  [/plan|remediation/, "draining", "half"],
  [/action|acting/, "validating", "ring"],
  [/recovered|verified/, "healthy", "check"],
];

export function entryLook(
  kind: string,
  data: Record<string, unknown> = {},
): { tone: Tone; glyph: GlyphName } {
  if (data.state === "failed" || data.ok === false) return { tone: "quarantined", glyph: "cross" };
  const found = LOOKS.find(([pattern]) => pattern.test(kind));
  return found ? { tone: found[1], glyph: found[2] } : { tone: "unknown", glyph: "dot" };
}

/** The kinds of entries that change the incident's state. */
const TURNING =
  /^(opened|recovery_planned|acting|recovered|recovery_failed|verified|closed|quiet|acknowledged)$/;

export function timelineRows(incident: Pick<IncidentDetail, "timeline" | "opened_at">): TimelineRow[] {
  return [...incident.timeline]
    .map((entry, index) => ({ entry, index }))
    .sort((a, b) => a.entry.time - b.entry.time || a.index - b.index)
    .map(({ entry, index }) => ({
      key: `${index}:${entry.kind}`,
      entry,
      offset: entry.time - incident.opened_at,
      turning: TURNING.test(entry.kind),
      ...entryLook(entry.kind, entry.data),
    }));
}

/** Format an offset from the opening: `+0.42 s`, `−120 ms`. */
export function offsetText(offset: number, format: (seconds: number) => string): string {
  if (Math.abs(offset) < 0.0005) return "0";
  return `${offset < 0 ? "−" : "+"}${format(Math.abs(offset))}`;
}

/** Return the data of an entry as pairs, without the data that another panel shows. */
export function detailPairs(data: Record<string, unknown>): [string, string][] {
  return Object.entries(data)
    .filter(([key, value]) => key !== "plan" && key !== "stacks" && value !== null && value !== "")
    .map(([key, value]): [string, string] => [
      key,
      typeof value === "object" ? JSON.stringify(value) : String(value),
    ])
    .filter(([, text]) => text.length < 400);
}
