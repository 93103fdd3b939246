import type { Verdict } from "@/api/types";
import { statusStyleOf, verdict as verdicts } from "@/lib/status-styles";
import { bandGeometry } from "./criterion";

interface Props {
  low: number | null;
  high: number | null;
  value: number | null;
  verdict: Verdict;
  label: string;
}

/** The accepted band and a tick at the measured value. */
export function CriterionBand({ low, high, value, verdict, label }: Props) {
  const band = bandGeometry(low, high, value);
  if (!band) {
    return (
      <div
        role="img"
        aria-label={`${label}: no criterion`}
        className="diagonal h-2 w-full rounded-full opacity-50"
      />
    );
  }
  const tone = statusStyleOf(verdicts, verdict).tone;
  return (
    <svg role="img" aria-label={label} viewBox="0 0 200 16" preserveAspectRatio="none" className="h-4 w-full">
      <path d="M0 8h200" stroke="var(--line-strong)" strokeWidth="1" vectorEffect="non-scaling-stroke" />
      <rect
        x={band.from * 200 - (band.to === band.from ? 3 : 0)}
        width={Math.max(6, (band.to - band.from) * 200)}
        y="4"
        height="8"
        rx="2"
        fill="var(--healthy)"
        opacity="0.32"
      />
      {band.value !== null && (
        <path
          d={`M${band.value * 200} 0v16`}
          stroke={`var(--${tone === "healthy" ? "ink" : tone})`}
          strokeWidth="2.5"
          vectorEffect="non-scaling-stroke"
        />
      )}
    </svg>
  );
}
