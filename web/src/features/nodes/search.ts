import { number, oneOf, type RawSearch, text } from "@/lib/search";

export const spans = ["5m", "15m", "1h", "6h", "24h", "7d", "30d"] as const;
export type SpanName = (typeof spans)[number];
export const spanSeconds: Record<SpanName, number> = {
  "5m": 300,
  "15m": 900,
  "1h": 3600,
  "6h": 21_600,
  "24h": 86_400,
  "7d": 604_800,
  "30d": 2_592_000,
};

export interface NodeSearch {
  span?: SpanName;
  from?: number;
  to?: number;
  device?: string;
  /** The open families of charts, separated by commas. */
  charts?: string;
}

/** The window of the charts: a span up to now, or a fixed one. */
export const parseNodeSearch = (raw: RawSearch): NodeSearch => ({
  span: oneOf(raw, "span", spans),
  from: number(raw, "from"),
  to: number(raw, "to"),
  device: text(raw, "device"),
  charts: text(raw, "charts"),
});
