/** Slow signals between fast columns: a signal read every 10 s is not missing in the seconds between. */

/** null is a gap in the line; undefined is a column between two readings, which the line crosses. */
export type Column = (number | null | undefined)[];

/** How late a reading may be, as a multiple of its usual interval, before the line breaks. */
const LATE = 1.6;

/** Make the columns between two readings undefined where their distance is the signal's own interval. */
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

/** Return the value at a column: its own, or the previous reading where the line crosses the column. */
export function heldAt(column: Column, index: number): number | null {
  let at = index;
  while (at > 0 && column[at] === undefined) at -= 1;
  return column[at] ?? null;
}
