/** Spans of time on one line: overlapping spans get different lanes. */

export interface Span {
  id: string;
  from: number;
  /** null: not ended. */
  to: number | null;
}

export interface Placed<T extends Span> {
  span: T;
  /** Shares of the window, 0..1. */
  left: number;
  width: number;
  lane: number;
}

/** Return spans cut to the window [start, end], in lanes without overlap; the narrowest stays visible. */
export function placeSpans<T extends Span>(
  spans: readonly T[],
  start: number,
  end: number,
  least = 0.004,
): Placed<T>[] {
  const length = end - start;
  if (length <= 0) return [];
  const lanes: number[] = [];
  return [...spans]
    .sort((a, b) => a.from - b.from)
    .filter((span) => (span.to ?? end) >= start && span.from <= end)
    .map((span) => {
      const left = Math.max(0, (span.from - start) / length);
      const width = Math.max(least, Math.min(1, ((span.to ?? end) - start) / length) - left);
      let lane = lanes.findIndex((busy) => busy <= left);
      if (lane < 0) lane = lanes.length;
      lanes[lane] = left + width + 0.002;
      return { span, left: Math.min(left, 1 - width), width, lane };
    });
}

const STEPS = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800,
];

/** Return at most `most` round times for an axis, on local-time boundaries. */
export function niceTicks(start: number, end: number, most: number, offsetSeconds = 0): number[] {
  const step =
    STEPS.find((s) => (end - start) / s <= most) ?? Math.ceil((end - start) / most / 86_400) * 86_400;
  const ticks: number[] = [];
  for (let t = Math.ceil((start + offsetSeconds) / step) * step - offsetSeconds; t <= end; t += step)
    ticks.push(t);
  return ticks;
}
