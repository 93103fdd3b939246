import type { PolicyTest } from "@/api/types";
import { integer, plural } from "@/lib/format";
import { Clock } from "@/ui/age";
import { Empty } from "@/ui/notice";
import { type Column, columnsFor, DataTable } from "@/ui/table";
import { changeText } from "./model";
import { Place } from "./place";

/** Totals before and after, and every error with a different result. */
export function TestResult({ result }: { result: PolicyTest }) {
  return (
    <div className="flex flex-col gap-4">
      <p className="text-ink-2 text-sm">
        {plural(result.events, "stored error")} from <Clock at={result.since} /> to{" "}
        <Clock at={result.until} />.{result.truncated && " Older errors in this time are not included."}
      </p>
      <div className="grid max-w-lg grid-cols-2 gap-6">
        <Pair name="findings" before={result.before.findings} after={result.after.findings} />
        <Pair name="drains" before={result.before.drains} after={result.after.drains} heavy />
      </div>
      {result.changes.length === 0 ? (
        <Empty title="No differences.">
          {result.events === 0 && "No driver errors are stored for this time."}
        </Empty>
      ) : (
        <div className="-mx-4">
          <DataTable
            label="Changes"
            data={result.changes}
            columns={columns}
            rowId={(c) => `${c.node}/${c.device}/${c.code}/${c.time}`}
            grow="after"
            columnClass={{ after: "min-w-56" }}
          />
          {result.changes_total > result.changes.length && (
            <p className="num px-4 pt-2 text-ink-3 text-xs">
              The first {result.changes.length} of {plural(result.changes_total, "change")}.
            </p>
          )}
        </div>
      )}
    </div>
  );
}

function Pair(props: { name: string; before: number; after: number; heavy?: boolean }) {
  const { name, before, after, heavy } = props;
  const worse = heavy && after > before;
  return (
    <div>
      <p className="num font-semibold text-2xl tracking-[-0.02em]">
        <span className="text-ink-3">{integer(before)}</span>
        <span aria-hidden="true" className="px-1.5 font-normal text-ink-3 text-lg">
          →
        </span>
        <span className="sr-only"> becomes </span>
        <span className={worse ? "text-suspect" : "text-ink"}>{integer(after)}</span>
      </p>
      <p className="text-ink-3 text-xs">
        {name} · {changeText(before, after)}
      </p>
    </div>
  );
}

type Change = PolicyTest["changes"][number];
const column = columnsFor<Change>();

const columns: Column<Change>[] = column.columns([
  column.accessor("time", {
    header: "When",
    cell: ({ row }) => (
      <span className="text-ink-2">
        <Clock at={row.original.time} />
      </span>
    ),
  }),
  column.accessor("node", {
    header: "Where",
    cell: ({ row }) => <Place node={row.original.node} device={row.original.device} />,
  }),
  column.accessor("code", { header: "Code" }),
  column.accessor("after", {
    header: "Result",
    cell: ({ row }) => (
      <span className="block truncate" title={`${row.original.before} → ${row.original.after}`}>
        <span className="text-ink-3">{row.original.before}</span>
        <span className="px-1.5 text-ink-3">→</span>
        <span className="font-medium">{row.original.after}</span>
      </span>
    ),
  }),
]) as Column<Change>[];
