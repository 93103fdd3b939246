/** The selected nodes of the fleet page, and what can be done with them. */
import type { SelectMode } from "@/charts/heat-map";
import { type Draft, emptyDraft } from "@/features/silences/model";

/** Nodes that one request takes. */
export const MAX_NODES = 1024;
/** Names that one silence takes. */
const MAX_PATTERNS = 200;

/** Return the next selection. A toggle of many adds them unless all are selected. */
export function nextSelection(
  old: ReadonlySet<string>,
  names: readonly string[],
  mode: SelectMode,
): ReadonlySet<string> {
  if (mode === "replace") return new Set(names);
  const next = new Set(old);
  const remove = mode === "toggle" && names.every((name) => old.has(name));
  for (const name of names) {
    if (remove) next.delete(name);
    else next.add(name);
  }
  return next;
}

/** Return a silence of these nodes: as racks if whole racks are selected; null if it needs too many names. */
export function silenceDraft(
  selected: ReadonlySet<string>,
  places: readonly { node: string; rack: string }[],
): Draft | null {
  const partial = new Set(places.filter(({ node }) => !selected.has(node)).map(({ rack }) => rack));
  const racks = new Set(places.filter(({ node }) => selected.has(node)).map(({ rack }) => rack));
  const known = new Set(places.map(({ node }) => node));
  const whole = [...racks].every((rack) => /^[^\s,*?[]+$/.test(rack) && !partial.has(rack));
  const byRack = racks.size > 0 && whole && [...selected].every((node) => known.has(node));
  const names = byRack ? [...racks] : [...selected];
  if (names.length > MAX_PATTERNS) return null;
  return { ...emptyDraft, [byRack ? "racks" : "nodes"]: names.join(" ") };
}
