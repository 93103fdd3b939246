/** The states of a node in the order of its life cycle, with the current one marked. */
import type { HealthState } from "@/api/types";
import { cx } from "@/lib/cx";
import { health, type Tone } from "@/lib/status-styles";
import { Glyph } from "@/ui/glyph";
import { round } from "./lifecycle-model";

const here: Record<Tone, string> = {
  healthy: "border-healthy bg-healthy-soft",
  suspect: "border-suspect bg-suspect-soft",
  draining: "border-draining bg-draining-soft",
  quarantined: "border-quarantined bg-quarantined-soft",
  validating: "border-validating bg-validating-soft",
  unknown: "border-unknown bg-unknown-soft",
};

export function NodeLifecycleBar({ state }: { state: HealthState }) {
  return (
    <ol aria-label="Life cycle" className="flex flex-wrap items-center gap-y-1.5">
      {round.map((step, index) => (
        <li key={step} aria-current={step === state ? "step" : undefined} className="flex items-center">
          {index > 0 && <Arrow />}
          <Station state={step} current={step === state} />
        </li>
      ))}
      <li className="flex items-center text-ink-3 text-xs">
        <Return />
        <span className={cx(state === "validating" && "text-ink-2")}>a pass returns it to healthy</span>
      </li>
      {state === "unknown" && (
        <li aria-current="step" className="ml-4 border-line-strong border-l pl-4">
          <Station state="unknown" current />
        </li>
      )}
    </ol>
  );
}

function Station({ state, current }: { state: HealthState; current: boolean }) {
  const look = health[state];
  return (
    <span
      title={look.about}
      className={cx(
        "flex h-8 items-center gap-1.5 whitespace-nowrap rounded-md border px-2.5 text-sm",
        current ? cx("border-2 font-semibold text-ink", here[look.tone]) : "border-line text-ink-3",
      )}
    >
      <Glyph name={look.glyph} tone={current ? look.tone : undefined} size={10} />
      {look.label}
    </span>
  );
}

function Arrow() {
  return (
    <svg viewBox="0 0 22 8" width="22" height="8" aria-hidden="true" className="text-line-strong">
      <path d="M2 4h16m-3-3 3 3-3 3" fill="none" stroke="currentColor" strokeWidth="1.4" />
    </svg>
  );
}

/** The arrow back to healthy. */
function Return() {
  return (
    <svg viewBox="0 0 26 14" width="26" height="14" aria-hidden="true" className="mx-1 text-line-strong">
      <path d="M2 10h15a4 4 0 0 0 0-8H9m3-2-3 2 3 2.6" fill="none" stroke="currentColor" strokeWidth="1.4" />
    </svg>
  );
}
