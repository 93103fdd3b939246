import { useId, useState } from "react";
import type { IncidentDetail } from "@/api/types";
import { cx } from "@/lib/cx";
import { duration, humanize, readable } from "@/lib/format";
import { clock } from "@/lib/time";
import { Glyph } from "@/ui/glyph";
import { Icon } from "@/ui/icon";
import { Panel } from "@/ui/panel";
import { Segmented } from "@/ui/segmented";
import { detailPairs, offsetText, type TimelineRow, timelineRows } from "./timeline-model";

/** The history of the incident, oldest first. */
export function Timeline({ incident }: { incident: IncidentDetail }) {
  const [times, setTimes] = useState<"offset" | "clock">("offset");
  const rows = timelineRows(incident);
  return (
    <Panel
      title="History"
      aside={
        <Segmented
          label="Times"
          value={times}
          onChange={setTimes}
          options={[
            { value: "offset", label: "From opening" },
            { value: "clock", label: "Clock" },
          ]}
        />
      }
    >
      <ol className="relative">
        <span aria-hidden="true" className="absolute top-2 bottom-2 left-[91px] w-px bg-line-strong" />
        {rows.map((row) => (
          <Row key={row.key} row={row} clockTimes={times === "clock"} />
        ))}
      </ol>
    </Panel>
  );
}

function Row({ row, clockTimes }: { row: TimelineRow; clockTimes: boolean }) {
  const pairs = detailPairs(row.entry.data);
  const [open, setOpen] = useState(false);
  const detail = useId();
  return (
    <li className="relative grid grid-cols-[5rem_1.5rem_minmax(0,1fr)_1.25rem] items-start py-1.5 text-sm">
      <time
        dateTime={new Date(row.entry.time * 1000).toISOString()}
        title={clock(row.entry.time, true)}
        className="num pt-px pr-2 text-right text-ink-3 text-xs leading-5"
      >
        {clockTimes ? clock(row.entry.time, true) : offsetText(row.offset, duration)}
      </time>
      <span className="z-10 grid h-5 w-6 place-items-center">
        <span className="grid size-5 place-items-center rounded-full bg-surface">
          <Glyph name={row.glyph} tone={row.tone} size={11} />
        </span>
      </span>
      <div className="min-w-0 pl-1.5">
        <p
          className={cx(row.turning ? "font-medium text-ink" : "text-ink-2")}
          title={humanize(row.entry.kind)}
        >
          <span className="sr-only">{humanize(row.entry.kind)}: </span>
          {readable(row.entry.text) || humanize(row.entry.kind)}
        </p>
        {pairs.length > 0 && open && (
          <dl
            id={detail}
            className="mt-1 grid grid-cols-[max-content_minmax(0,1fr)] gap-x-3 rounded bg-sunken px-2 py-1.5 font-mono text-2xs"
          >
            {pairs.map(([key, value]) => (
              <div key={key} className="contents">
                <dt className="text-ink-3">{key}</dt>
                <dd className="break-words text-ink-2">{value}</dd>
              </div>
            ))}
          </dl>
        )}
      </div>
      {pairs.length > 0 && (
        <button
          type="button"
          aria-expanded={open}
          aria-controls={detail}
          aria-label={`Data of ${humanize(row.entry.kind)}`}
          onClick={() => setOpen(!open)}
          className={cx(
            "grid size-5 place-items-center rounded text-ink-3 hover:bg-hover hover:text-ink",
            open && "rotate-90",
          )}
        >
          <Icon name="right" size={12} />
        </button>
      )}
    </li>
  );
}
