/** A ticking age by the service's clock, with the exact time on hover. */
import { age } from "@/lib/format";
import { clock, iso, useNow, when } from "@/lib/time";

export function Age({ at, suffix = " ago" }: { at: number | null | undefined; suffix?: string }) {
  const now = useNow();
  if (at == null) return <span className="text-ink-3">never</span>;
  return (
    <time dateTime={iso(at)} title={`${when(at, now)} (${iso(at)})`} className="num whitespace-nowrap">
      {age(now - at)}
      {suffix}
    </time>
  );
}

/** The time until a planned event, or how long it is overdue. */
export function Until({ at }: { at: number | null | undefined }) {
  const now = useNow();
  if (at == null) return <span className="text-ink-3">not scheduled</span>;
  const left = at - now;
  return (
    <time dateTime={iso(at)} title={when(at, now)} className="num whitespace-nowrap">
      {left >= 0 ? `in ${age(left)}` : `due ${age(-left)} ago`}
    </time>
  );
}

export function Clock({ at, millis = false }: { at: number; millis?: boolean }) {
  const now = useNow();
  return (
    <time dateTime={iso(at)} title={iso(at)} className="num whitespace-nowrap">
      {millis ? clock(at, true) : when(at, now)}
    </time>
  );
}
