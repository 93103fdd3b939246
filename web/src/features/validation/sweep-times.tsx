/** When a sweep runs: by schedule, once, or on request. */
import type { ReactNode } from "react";
import { Segmented } from "@/ui/segmented";
import type { MoreOfInput } from "./sweep-dialog";
import { localZone, type SweepFields } from "./sweep-form";

interface Props {
  when: SweepFields["when"];
  onWhen: (when: SweepFields["when"]) => void;
  line: (label: string, name: keyof SweepFields, hint: string, more: MoreOfInput) => ReactNode;
}

const options = [
  { value: "schedule", label: "By schedule" },
  { value: "once", label: "Once" },
  { value: "request", label: "On request" },
] as const;

export function SweepTimes({ when, onWhen, line }: Props) {
  const zone = `In the time zone of this browser, ${localZone()}.`;
  return (
    <div className="flex flex-col items-start gap-3">
      <Segmented label="Runs" value={when} onChange={onWhen} options={options} />
      {when === "once" && line("Time", "runAt", zone, { type: "datetime-local", required: true })}
      {when === "schedule" && (
        <div className="grid w-full grid-cols-2 gap-x-4">
          {line("Schedule", "schedule", "Cron, or “every 3600s”.", {
            required: true,
            className: "font-mono",
          })}
          {line("Time zone", "timezone", "Of the cron schedule.", { required: true, list: "time-zones" })}
          <datalist id="time-zones">
            {Intl.supportedValuesOf("timeZone").map((name) => (
              <option key={name} value={name} />
            ))}
          </datalist>
        </div>
      )}
    </div>
  );
}
