import { Link, useNavigate } from "@tanstack/react-router";
import { useMemo } from "react";
import type { Node, NodeSort } from "@/api/types";
import type { SelectMode } from "@/charts/heat-map";
import { plural, readable } from "@/lib/format";
import { health, statusStyleOf, verdict } from "@/lib/status-styles";
import { Age } from "@/ui/age";
import { Empty } from "@/ui/notice";
import { StatePill } from "@/ui/state-pill";
import { type Column, columnsFor, DataTable } from "@/ui/table";

const column = columnsFor<Node>();

/** "8 × NVIDIA H100" instead of eight lines. */
export function devicesText(node: Node): string {
  const counts = new Map<string, number>();
  for (const device of node.devices) {
    if (device.kind === "gpu") counts.set(device.model, (counts.get(device.model) ?? 0) + 1);
  }
  if (counts.size === 0) return `no GPU, ${plural(node.cpu_count, "core")}`;
  return [...counts].map(([model, count]) => `${count} × ${model.replace(/^NVIDIA /, "")}`).join(", ");
}

const columns: Column<Node>[] = column.columns([
  column.accessor("name", {
    header: "Node",
    cell: ({ row }) => (
      <Link
        to="/nodes/$name"
        params={{ name: row.original.name }}
        search={{}}
        className="font-medium text-ink hover:underline"
        tabIndex={-1}
      >
        {row.original.name}
      </Link>
    ),
  }),
  column.accessor("state", {
    header: "State",
    sortDescFirst: false,
    cell: ({ row }) => (
      <span className="flex min-w-0 items-center gap-2">
        <StatePill look={statusStyleOf(health, row.original.state)} quiet />
        <span className="truncate text-ink-3 text-xs" title={row.original.state_reason}>
          {readable(row.original.state_reason)}
        </span>
      </span>
    ),
  }),
  column.accessor((node) => node.last_seen_at ?? 0, {
    id: "last_seen",
    header: "Last report",
    cell: ({ row }) => (
      <span className="text-ink-2">
        <Age at={row.original.last_seen_at} />
      </span>
    ),
  }),
  column.accessor((node) => node.devices.length, {
    id: "devices",
    enableSorting: false,
    header: "Devices",
    cell: ({ row }) => <span className="text-ink-2">{devicesText(row.original)}</span>,
  }),
  column.accessor("rack", {
    header: "Rack",
    cell: ({ row }) => <span className="text-ink-2">{row.original.rack || "–"}</span>,
  }),
  column.accessor("cohort", {
    header: "Cohort",
    cell: ({ row }) => <span className="text-ink-2">{row.original.cohort}</span>,
  }),
  column.accessor((node) => node.jobs.length, {
    id: "jobs",
    enableSorting: false,
    header: "Jobs",
    cell: ({ row }) => <JobLinks jobs={row.original.jobs} />,
  }),
  column.accessor("open_incidents", {
    id: "incidents",
    header: "Incidents",
    cell: ({ row }) =>
      row.original.open_incidents > 0 ? (
        <Link
          to="/incidents"
          search={{ node: row.original.name }}
          className="font-semibold text-quarantined"
          tabIndex={-1}
        >
          {row.original.open_incidents}
        </Link>
      ) : (
        <span className="text-ink-3">0</span>
      ),
  }),
  column.accessor((node) => node.last_validation_at ?? 0, {
    id: "verdict",
    enableSorting: false,
    header: "Last validation",
    cell: ({ row }) => {
      const { last_verdict, last_validation_at } = row.original;
      if (last_verdict === null) return <span className="text-ink-3">never validated</span>;
      return (
        <span className="flex items-center gap-2">
          <StatePill look={statusStyleOf(verdict, last_verdict)} quiet />
          <span className="text-ink-3 text-xs">
            <Age at={last_validation_at} />
          </span>
        </span>
      );
    },
  }),
]) as Column<Node>[];

/** Checkboxes that share the selection of the map. */
function selectColumn(nodes: Node[], selected: Props["selected"], onSelect: Props["onSelect"]): Column<Node> {
  const box = (label: string, names: string[]) => (
    <input
      type="checkbox"
      aria-label={label}
      className="block size-4 accent-accent"
      checked={names.length > 0 && names.every((name) => selected.has(name))}
      onChange={() => onSelect(names, "toggle")}
    />
  );
  const shown = nodes.map((node) => node.name);
  return column.display({
    id: "select",
    header: () => box("Select all nodes of the table", shown),
    cell: ({ row }) => box(`Select ${row.original.name}`, [row.original.name]),
  }) as Column<Node>;
}

function JobLinks({ jobs }: { jobs: string[] }) {
  if (jobs.length === 0) return <span className="text-ink-3">–</span>;
  return (
    <span className="flex gap-2">
      {jobs.slice(0, 2).map((id) => (
        <Link
          key={id}
          to="/jobs/$id"
          params={{ id }}
          search={{}}
          className="max-w-40 truncate text-ink-2 hover:underline"
          tabIndex={-1}
        >
          {id}
        </Link>
      ))}
      {jobs.length > 2 && <span className="text-ink-3">+{jobs.length - 2}</span>}
    </span>
  );
}

interface Props {
  nodes: Node[];
  /** Clear the filters; absent if there are none. */
  onClear?: () => void;
  selected: ReadonlySet<string>;
  onSelect: (names: string[], mode: SelectMode) => void;
  sort: NodeSort;
  onSort: (sort: NodeSort) => void;
}

export function NodeTable({ nodes, onClear, selected, onSelect, sort, onSort }: Props) {
  const navigate = useNavigate();
  const all = useMemo(
    () => [selectColumn(nodes, selected, onSelect), ...columns],
    [nodes, selected, onSelect],
  );
  if (nodes.length === 0) {
    return (
      <div className="px-4 pb-4">
        {onClear ? (
          <Empty title="No matching nodes.">
            No node meets all filters.{" "}
            <button type="button" onClick={onClear} className="font-medium text-ink underline">
              Clear the filters
            </button>
          </Empty>
        ) : (
          <Empty title="No nodes enrolled.">
            Create a join token with <code className="font-mono text-xs">mainstay token</code>, then start{" "}
            <code className="font-mono text-xs">mainstay node</code> on the node.
          </Empty>
        )}
      </div>
    );
  }
  return (
    <DataTable
      label="Nodes"
      data={nodes}
      columns={all}
      rowId={(node) => node.name}
      sort={sort}
      sorted
      onSort={(next) => onSort(next as NodeSort)}
      right={["incidents"]}
      grow="state"
      columnClass={{
        cohort: "max-[1600px]:hidden",
        rack: "max-[1300px]:hidden",
        devices: "max-[1100px]:hidden",
        last_seen: "max-sm:hidden",
      }}
      onOpen={(node) => void navigate({ to: "/nodes/$name", params: { name: node.name }, search: {} })}
    />
  );
}
