/** GPU-hours lost by cause: one bar per policy, on one scale. */
import { integer, percent } from "@/lib/format";
import { CAUSES, lostTotal, type Result } from "./model";

const color = (index: number) => `var(--phase-${index + 1})`;

export function LossLegend() {
  return (
    <ul aria-label="Causes" className="flex flex-wrap gap-x-4 gap-y-1 text-ink-2 text-xs">
      {CAUSES.map(({ key, description }, index) => (
        <li key={key} className="inline-flex items-center gap-1.5">
          <span className="size-2.5 rounded-[2px]" style={{ backgroundColor: color(index) }} />
          {description}
        </li>
      ))}
    </ul>
  );
}

export function Losses({ results }: { results: Result[] }) {
  const followed = results.filter((one) => one.lost_gpu_hours !== null);
  const scale = followed.reduce((most, one) => Math.max(most, lostTotal(one)), 0);
  return (
    <ul aria-label="GPU-hours lost by policy" className="flex flex-col gap-2">
      {followed.map((one) => (
        <LossBar key={one.policy.name} one={one} scale={scale} />
      ))}
    </ul>
  );
}

function LossBar({ one, scale }: { one: Result; scale: number }) {
  const lost = one.lost_gpu_hours;
  if (lost === null) return null;
  const total = lostTotal(one);
  const share = (hours: number) => (scale > 0 ? `${(hours / scale) * 100}%` : "0%");
  const reported = CAUSES.filter(({ key }) => lost[key] > 0).map(
    ({ key, description }) => `${description} ${integer(lost[key])} GPU-hours, ${percent(lost[key] / total)}`,
  );
  return (
    <li className="grid grid-cols-[minmax(0,1fr)_auto] items-center gap-x-4 gap-y-0.5 text-sm sm:grid-cols-[13rem_minmax(0,1fr)_6rem]">
      <span className="first-letter:uppercase">{one.policy.description}</span>
      <div
        role="img"
        aria-label={`${one.policy.description}: ${reported.join("; ") || "no loss"}`}
        className="flex h-3.5 overflow-hidden rounded-[3px] max-sm:order-last max-sm:col-span-2"
      >
        {CAUSES.map(({ key }, index) => (
          <span
            key={key}
            title={reported.find((text) => text.startsWith(CAUSES[index]?.description ?? key))}
            className="h-full"
            style={{ width: share(lost[key]), backgroundColor: color(index) }}
          />
        ))}
      </div>
      <span className="num text-right text-ink-2">{integer(total)}</span>
    </li>
  );
}
