/** The shape of a state: readable without color, at 10 pixels, in print. */
import type { ReactNode } from "react";
import type { GlyphName, Tone } from "@/lib/status-styles";

export const toneText: Record<Tone, string> = {
  healthy: "text-healthy",
  suspect: "text-suspect",
  draining: "text-draining",
  quarantined: "text-quarantined",
  validating: "text-validating",
  unknown: "text-unknown",
};

const line = { stroke: "currentColor", strokeWidth: 2, strokeLinecap: "round", fill: "none" } as const;

const shapes: Record<GlyphName, ReactNode> = {
  dot: <circle cx="6" cy="6" r="3.6" fill="currentColor" />,
  ring: <circle cx="6" cy="6" r="3.8" {...line} />,
  triangle: <path d="M6 1.4 11.2 10.6H.8Z" fill="currentColor" />,
  down: <path d="M6 10.6.8 1.4h10.4Z" fill="currentColor" />,
  cross: <path d="m2.2 2.2 7.6 7.6m0-7.6-7.6 7.6" {...line} strokeWidth={2.6} />,
  half: (
    <>
      <circle cx="6" cy="6" r="4.2" {...line} strokeWidth={1.6} />
      <path d="M6 1.8a4.2 4.2 0 0 1 0 8.4Z" fill="currentColor" />
    </>
  ),
  question: (
    <>
      <path d="M3.4 4.2a2.6 2.6 0 1 1 3.9 2.2C6.4 6.9 6 7.2 6 8" {...line} strokeWidth={1.8} />
      <circle cx="6" cy="10.6" r="1.1" fill="currentColor" />
    </>
  ),
  check: <path d="m1.8 6.4 2.9 3 5.5-6.6" {...line} strokeWidth={2.4} />,
  bang: (
    <>
      <path d="M6 1.6v5.4" {...line} strokeWidth={2.6} />
      <circle cx="6" cy="10.3" r="1.5" fill="currentColor" />
    </>
  ),
  bars: <path d="M2 10V6m4 4V2m4 8V4.5" {...line} />,
};

export function Glyph({ name, tone, size = 12 }: { name: GlyphName; tone?: Tone; size?: number }) {
  return (
    <svg
      viewBox="0 0 12 12"
      width={size}
      height={size}
      aria-hidden="true"
      className={`shrink-0 ${tone ? toneText[tone] : ""}`}
    >
      {shapes[name]}
    </svg>
  );
}
