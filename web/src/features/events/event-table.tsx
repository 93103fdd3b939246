import { Link } from "@tanstack/react-router";
import { useState } from "react";
import type { FleetEvent } from "@/api/types";
import { deviceName } from "@/features/devices/device-labels";
import { humanize } from "@/lib/format";
import { Age, Clock } from "@/ui/age";
import { Button } from "@/ui/button";
import { Glyph } from "@/ui/glyph";
import { type Column, columnsFor, DataTable } from "@/ui/table";
import { eventLook, eventText } from "./event-text";

const column = columnsFor<FleetEvent>();

const columns: Column<FleetEvent>[] = column.columns([
  column.accessor("time", {
    header: "When",
    cell: ({ row }) => (
      <span className="flex gap-2 text-ink-2">
        <Clock at={row.original.time} millis />
        <span className="text-ink-3 text-xs leading-5">
          <Age at={row.original.time} />
        </span>
      </span>
    ),
  }),
  column.accessor("kind", {
    header: "What",
    cell: ({ row }) => {
      const look = eventLook(row.original);
      return (
        <span className="flex items-center gap-2 whitespace-nowrap font-medium">
          <Glyph name={look.glyph} tone={look.tone} size={11} />
          {humanize(row.original.kind)}
        </span>
      );
    },
  }),
  column.accessor((event) => event.rank ?? -1, {
    id: "where",
    header: "Where",
    cell: ({ row }) => <Where event={row.original} />,
  }),
  column.accessor("id", {
    id: "detail",
    header: "Detail",
    cell: ({ row }) => (
      <span className="block truncate text-ink-2" title={eventText(row.original)}>
        {eventText(row.original)}
      </span>
    ),
  }),
]) as Column<FleetEvent>[];

function Where({ event }: { event: FleetEvent }) {
  return (
    <span className="flex gap-x-2 whitespace-nowrap text-ink-2">
      {event.job && (
        <Link to="/jobs/$id" params={{ id: event.job }} search={{}} className="hover:underline" tabIndex={-1}>
          {event.job}
        </Link>
      )}
      {event.rank !== null && <span className="num">rank {event.rank}</span>}
      {event.node && (
        <Link
          to="/nodes/$name"
          params={{ name: event.node }}
          search={{}}
          className="hover:underline"
          tabIndex={-1}
        >
          {event.node}
        </Link>
      )}
      {event.device && event.device !== "host" && (
        <span className="text-ink-3" title={event.device}>
          {deviceName(event.device)}
        </span>
      )}
      {event.generation !== null && <span className="num text-ink-3">gen {event.generation}</span>}
    </span>
  );
}

function EventTable({ events, label }: { events: FleetEvent[]; label: string }) {
  return (
    <DataTable label={label} data={events} columns={columns} rowId={(event) => event.id} grow="detail" />
  );
}

const FEW = 16;

/** Events, newest first; a long history opens on demand. */
export function EventHistory({ events, label }: { events: FleetEvent[]; label: string }) {
  const [all, setAll] = useState(false);
  return (
    <>
      <EventTable events={all ? events : events.slice(0, FEW)} label={label} />
      {!all && events.length > FEW && (
        <div className="border-line border-t px-4 py-2.5">
          <Button kind="ghost" onClick={() => setAll(true)}>
            Show {events.length - FEW} older
          </Button>
        </div>
      )}
    </>
  );
}
