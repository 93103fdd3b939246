/** Slow signals between fast columns. A signal read every 10 s is not missing in the seconds between. Pure. */

/** null is a gap that is drawn as one; undefined is a column between two readings, over which the line goes on. */
export type Column = (number | null | undefined)[];

/** How much longer than its usual pace a reading may be late before the line breaks: one lost reading shows. */
const LATE = 1.6;

/** Columns between two readings become undefined where the distance is the signal's own pace. */
export function bridged(values: readonly (number | null)[]): Column {
  const at = values.flatMap((value, index) => (value === null ? [] : [index]));
  const steps = at.slice(1).map((index, i) => index - (at[i] as number));
  const pace = [...steps].sort((a, b) => a - b)[Math.floor(steps.length / 2)] ?? 1;
  if (pace <= 1) return [...values];
  const column: Column = [...values];
  steps.forEach((step, i) => {
    if (step > pace * LATE) return;
    const from = at[i] as number;
    for (let index = from + 1; index < from + step; index += 1) column[index] = undefined;
  });
  return column;
}

/** The value that held at a column: its own, or the reading before it where the line goes on. */
export function heldAt(column: Column, index: number): number | null {
  let at = index;
  while (at > 0 && column[at] === undefined) at -= 1;
  return column[at] ?? null;
}
