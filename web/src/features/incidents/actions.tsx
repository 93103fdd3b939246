import type { Action } from "@/api/types";
import { duration, humanize } from "@/lib/format";
import type { StatusStyle } from "@/lib/status-styles";
import { Clock } from "@/ui/age";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { StatePill } from "@/ui/state-pill";
import { type Column, columnsFor, DataTable } from "@/ui/table";

function style(state: string): StatusStyle {
  if (/done|finished|succeeded|ok/.test(state))
    return { label: humanize(state), tone: "healthy", glyph: "check", about: "" };
  if (/fail|error/.test(state))
    return { label: humanize(state), tone: "quarantined", glyph: "cross", about: "" };
  if (/running|started|acting/.test(state))
    return { label: humanize(state), tone: "suspect", glyph: "half", about: "" };
  return { label: humanize(state), tone: "unknown", glyph: "dot", about: "" };
}

const column = columnsFor<Action>();

const columns: Column<Action>[] = column.columns([
  column.accessor("name", {
    header: "Action",
    cell: ({ row }) => <span className="font-medium">{humanize(row.original.name)}</span>,
  }),
  column.accessor("state", {
    header: "State",
    cell: ({ row }) => <StatePill look={style(row.original.state)} quiet />,
  }),
  column.accessor("started_at", {
    id: "started",
    header: "Started",
    cell: ({ row }) => (
      <span className="text-ink-2">
        <Clock at={row.original.started_at} millis />
      </span>
    ),
  }),
  column.accessor("seconds", { header: "Duration", cell: ({ row }) => duration(row.original.seconds) }),
  column.accessor("detail", {
    header: "Detail",
    cell: ({ row }) => (
      <span className="block truncate text-ink-2" title={row.original.detail}>
        {row.original.detail}
      </span>
    ),
  }),
]) as Column<Action>[];

export function Actions({ actions }: { actions: Action[] }) {
  return (
    <Panel title="Actions" flush>
      {actions.length === 0 ? (
        <div className="px-4 pb-3">
          <Empty title="No actions yet." />
        </div>
      ) : (
        <DataTable
          label="Actions"
          data={actions}
          columns={columns}
          rowId={(a) => a.id}
          right={["seconds"]}
          grow="detail"
        />
      )}
    </Panel>
  );
}
