/** Cumulative curves of samples on one axis: the ratio of a sample that is at most x. */

export interface Axis {
  from: number;
  to: number;
}

/** Return an axis over all drawn values, with a margin; null without values. */
export function axisOver(values: readonly number[], margin = 0.06): Axis | null {
  const known = values.filter(Number.isFinite);
  if (known.length === 0) return null;
  const least = known.reduce((a, b) => Math.min(a, b));
  const most = known.reduce((a, b) => Math.max(a, b));
  const pad = (most - least || Math.abs(most) || 1) * margin;
  return { from: least - pad, to: most + pad };
}

export const place = (value: number, axis: Axis) => (value - axis.from) / (axis.to - axis.from);

/**
 * The steps of the empirical distribution function as an SVG path, in a box of `width` by `height`.
 *
 * `rising`: the sample in ascending order. The curve starts at 0 on the left edge of the axis and ends at 1 on the right.
 */
export function stepPath(rising: readonly number[], axis: Axis, width: number, height: number): string {
  if (rising.length === 0) return "";
  const x = (value: number) => (place(value, axis) * width).toFixed(1);
  const y = (share: number) => ((1 - share) * height).toFixed(1);
  const steps = rising.map((value, i) => `H${x(value)}V${y((i + 1) / rising.length)}`);
  return `M0 ${y(0)}${steps.join("")}H${width}`;
}

/** Round values inside the axis, at most `most` of them. */
export function ticks(axis: Axis, most: number): number[] {
  const span = axis.to - axis.from;
  if (!(span > 0) || most < 1) return [];
  const raw = span / most;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5, 10].find((factor) => factor * power >= raw) ?? 10);
  const first = Math.ceil(axis.from / step);
  const found: number[] = [];
  for (let i = first; i * step <= axis.to; i += 1) found.push(i * step);
  return found;
}

/** Return the spans beyond the limits, as ratios from 0 to 1 of the axis. */
export function refused(low: number | null, high: number | null, axis: Axis): [number, number][] {
  const spans: [number, number][] = [];
  const clamp = (share: number) => Math.min(1, Math.max(0, share));
  if (low !== null) spans.push([0, clamp(place(low, axis))]);
  if (high !== null) spans.push([clamp(place(high, axis)), 1]);
  return spans.filter(([from, to]) => to > from);
}

export const beyond = (value: number, low: number | null, high: number | null) =>
  (low !== null && value < low) || (high !== null && value > high);

/** Thin out marks that would overlap: the remaining ones are at least `gap` apart, in ascending order. */
export function apart(values: readonly number[], at: (value: number) => number, gap: number): number[] {
  const kept: number[] = [];
  for (const value of [...values].sort((a, b) => a - b)) {
    const last = kept.at(-1);
    if (last === undefined || at(value) - at(last) >= gap) kept.push(value);
  }
  return kept;
}
