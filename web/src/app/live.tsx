/** An indicator of whether the page is current, and a banner when it is not. */
import { age } from "@/lib/format";
import { useLive } from "@/lib/live";
import { clock, useNow } from "@/lib/time";
import { Age } from "@/ui/age";
import { Glyph } from "@/ui/glyph";
import { Tooltip } from "@/ui/tooltip";

/** Data older than this is shown with its age; node daemons send every 1 to 2 s. */
const OLD_SECONDS = 15;

export function LiveIndicator({ dataAge, readAt }: { dataAge: number | null; readAt: number }) {
  const live = useLive();
  const now = useNow();
  const old = dataAge === null ? null : dataAge + Math.max(0, Date.now() / 1000 - readAt);
  const good = live.status === "live";
  const word = good
    ? "Live"
    : live.status === "connecting"
      ? "Connecting"
      : `Stale since ${clock(live.since)}`;
  const dated = readAt === 0 ? "" : old === null ? "no measurements yet" : `newest data ${age(old)} old`;
  return (
    <Tooltip
      content={
        <>
          {good ? "Connected for " : "Not connected for "}
          {age(Math.max(0, now - live.since))}. {live.messages} changes received.
        </>
      }
    >
      <button type="button" className="flex items-center gap-2 rounded px-2 py-1 text-left text-xs">
        <span className={live.status === "connecting" ? "animate-breathe" : ""}>
          <Glyph name={good ? "dot" : "half"} tone={good ? "healthy" : "suspect"} />
        </span>
        <span className="sr-only lg:hidden">{word}</span>
        <span className="hidden leading-4 lg:block">
          <span className="block font-medium text-ink">{word}</span>
          <span className={old === null || old > OLD_SECONDS ? "block text-suspect" : "num block text-ink-3"}>
            {dated}
          </span>
        </span>
      </button>
    </Tooltip>
  );
}

export function LiveBanner() {
  const live = useLive();
  if (live.status !== "stale") return null;
  return (
    <div
      role="status"
      className="flex items-center gap-2 border-line border-b bg-suspect-soft px-6 py-2 text-ink-2 text-sm"
    >
      <Glyph name="half" tone="suspect" />
      <span>
        <b className="font-semibold text-ink">The live connection is lost.</b> This page may be out of date
        since {clock(live.since)} (<Age at={live.since} />
        ). The page reconnects automatically. Training and recovery do not depend on the service.
      </span>
    </div>
  );
}
