/** The stages of an incident (opened, recovering, recovered, verified, closed) and the time that each took. */
import type { Incident } from "@/api/types";
import { cx } from "@/lib/cx";
import { age, duration } from "@/lib/format";
import { clock, useNow } from "@/lib/time";
import { Glyph } from "@/ui/glyph";
import { lifecycleSteps } from "./lifecycle-model";

export function LifecycleBar({ incident }: { incident: Incident }) {
  const now = useNow();
  const steps = lifecycleSteps(incident);
  const closed = incident.closed_at !== null;
  const reached = steps.reduce((last, step, index) => (step.at === null ? last : index), 0);
  return (
    <ol
      aria-label="Life cycle of the incident"
      className="grid grid-cols-5 max-sm:grid-cols-1 max-sm:gap-y-2"
    >
      {steps.map((step, index) => {
        const done = step.at !== null;
        const skipped = !done && closed;
        const waiting = !closed && index === reached + 1;
        return (
          <li key={step.state} className="relative min-w-0 pt-5 pr-3 max-sm:pt-0 max-sm:pl-6">
            {index > 0 && (
              <span
                aria-hidden="true"
                className={cx(
                  "absolute top-[7px] right-1/1 left-[calc(-100%+18px)] h-0.5 max-sm:hidden",
                  done ? "bg-accent" : waiting ? "diagonal" : "bg-line",
                )}
                style={{ width: "calc(100% - 22px)" }}
              />
            )}
            <span
              aria-hidden="true"
              className={cx(
                "absolute top-0 left-0 grid size-4 place-items-center rounded-full",
                done ? "bg-accent text-accent-ink" : "border-2 border-line-strong bg-surface",
                waiting && "animate-breathe border-suspect",
              )}
            >
              {done && <Glyph name="check" size={9} />}
            </span>
            <p className={cx("font-medium text-sm", done ? "text-ink" : "text-ink-3")}>{step.label}</p>
            <p
              className="num text-ink-3 text-xs leading-4"
              title={step.at ? clock(step.at, true) : undefined}
            >
              {done && (step.after === null ? clock(step.at) : `+${duration(step.after)}`)}
              {skipped && "skipped"}
              {waiting && `waiting ${age(now - (steps[reached]?.at ?? now))}`}
            </p>
          </li>
        );
      })}
    </ol>
  );
}

/** The stages as five small marks, for rows. */
export function LifeMini({ incident }: { incident: Incident }) {
  const steps = lifecycleSteps(incident);
  const done = steps.filter((step) => step.at !== null).length;
  return (
    <span
      role="img"
      aria-label={`${done} of 5 stages: ${incident.state}`}
      className="inline-flex items-center gap-0.5"
    >
      {steps.map((step) => (
        <span
          key={step.state}
          title={step.at === null ? `${step.label}: not yet` : `${step.label} ${clock(step.at)}`}
          className={cx("h-1.5 w-4 rounded-full", step.at === null ? "bg-line-strong/60" : "bg-accent")}
        />
      ))}
    </span>
  );
}
