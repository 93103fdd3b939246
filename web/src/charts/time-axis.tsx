import { clock } from "@/lib/time";
import { niceTicks } from "./strip";

const DAY = 86_400;

function label(tick: number, span: number): string {
  if (span <= 2 * DAY) return span < 1200 ? clock(tick) : clock(tick).slice(0, 5);
  const d = new Date(tick * 1000);
  return `${d.getMonth() + 1}-${String(d.getDate()).padStart(2, "0")}`;
}

/** Local times below a strip; the last one may be called "now". */
export function TimeAxis({ start, end, last }: { start: number; end: number; last?: string }) {
  const offset = -new Date(end * 1000).getTimezoneOffset() * 60;
  return (
    <div className="relative h-5" aria-hidden="true">
      {niceTicks(start, end, 8, offset).map((tick) => {
        const at = (tick - start) / (end - start);
        if (at > 0.9 || at < 0.015) return null;
        return (
          <span
            key={tick}
            className="num absolute top-1.5 -translate-x-1/2 text-2xs text-ink-3 max-sm:even:hidden"
            style={{ left: `${at * 100}%` }}
          >
            {label(tick, end - start)}
          </span>
        );
      })}
      <span className="absolute top-1.5 right-0 text-2xs text-ink-3">{last ?? label(end, end - start)}</span>
    </div>
  );
}
