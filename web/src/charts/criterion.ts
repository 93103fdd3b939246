/** The position of a value relative to its criterion, as ratios of a small axis. */

export interface BandGeometry {
  /** Ratios from 0 to 1 of the axis; the band extends to the edge on a side without a limit. */
  from: number;
  to: number;
  value: number | null;
  openLow: boolean;
  openHigh: boolean;
}

/** Return an axis that shows the band, a margin, and the value at any distance. */
export function bandGeometry(
  low: number | null,
  high: number | null,
  value: number | null,
): BandGeometry | null {
  const known = [low, high, value].filter((v): v is number => v !== null && Number.isFinite(v));
  if (known.length === 0 || (low === null && high === null)) return null;
  const least = Math.min(...known);
  const most = Math.max(...known);
  const span = most - least || Math.abs(most) || 1;
  const pad = span * 0.35;
  const start = least - pad;
  const place = (v: number) => (v - start) / (span + 2 * pad);
  return {
    from: low === null ? 0 : place(low),
    to: high === null ? 1 : place(high),
    value: value === null ? null : place(value),
    openLow: low === null,
    openHigh: high === null,
  };
}
