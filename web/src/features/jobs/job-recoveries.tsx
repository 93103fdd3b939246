import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import type { Job, Recovery } from "@/api/types";
import { PhaseBar, PhaseLegend, phaseOrder } from "@/charts/phase-bar";
import { ranksText } from "@/features/incidents/life";
import { measuredParts } from "@/features/incidents/plan-model";
import { duration, humanize, plural } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { Age } from "@/ui/age";
import { Panel } from "@/ui/panel";
import { type Column, columnsFor, DataTable } from "@/ui/table";
import { regretText } from "./decision-model";
import { JobDecision } from "./job-decision";
import { recoveriesQuery } from "./queries";

interface Row extends Recovery {
  measured: Record<string, number>;
  phases: string[];
  scale: number;
}

const column = columnsFor<Row>();

const columns: Column<Row>[] = column.columns([
  column.accessor("failed_at", {
    id: "when",
    header: "When",
    cell: ({ row }) => (
      <span className="text-ink-2">
        <Age at={row.original.failed_at} />
      </span>
    ),
  }),
  column.accessor("failed_ranks", {
    id: "what",
    header: "Lost",
    cell: ({ row }) => {
      const text = ranksText(row.original.failed_ranks);
      return row.original.incident ? (
        <Link
          to="/incidents/$id"
          params={{ id: row.original.incident }}
          className="font-medium hover:underline"
          tabIndex={-1}
        >
          {text}
        </Link>
      ) : (
        text
      );
    },
  }),
  column.accessor("strategy", {
    header: "Brought back by",
    cell: ({ row }) => {
      const { way, strategy } = row.original;
      return way || strategy ? humanize(way ?? strategy ?? "") : "nothing";
    },
  }),
  column.accessor("parts", {
    id: "phases",
    header: "Where the time went",
    cell: ({ row }) => (
      <PhaseBar
        parts={row.original.measured}
        phases={row.original.phases}
        scale={row.original.scale}
        label={ranksText(row.original.failed_ranks)}
      />
    ),
  }),
  column.accessor("seconds", {
    id: "took",
    header: "Took",
    cell: ({ row }) => duration(row.original.seconds),
  }),
  column.accessor("predicted_seconds", {
    id: "predicted",
    header: "Predicted",
    cell: ({ row }) => (
      <span className="text-ink-2">
        {duration(row.original.promised_seconds ?? row.original.predicted_seconds)}
      </span>
    ),
  }),
  column.accessor("regret_seconds", {
    id: "regret",
    header: "Regret",
    cell: ({ row }) => <span className="text-ink-2">{regretText(row.original)}</span>,
  }),
  column.accessor("steps_lost", {
    id: "lost",
    header: "Steps lost",
    cell: ({ row }) => row.original.steps_lost ?? "–",
  }),
  column.accessor("outcome", { header: "Outcome", cell: ({ row }) => humanize(row.original.outcome) }),
  column.accessor("decision", {
    id: "weighed",
    header: "Weighed",
    cell: ({ row }) => row.original.decision && <JobDecision recovery={row.original} />,
  }),
]) as Column<Row>[];

function rowsOf(recoveries: Recovery[]): Row[] {
  const measured = recoveries.map((recovery) => measuredParts(recovery.parts, recovery.seconds));
  const phases = phaseOrder(measured.flatMap((parts) => Object.keys(parts)));
  const totals = measured.map((parts) => Object.values(parts).reduce((a, b) => a + b, 0));
  const scale = Math.max(1e-6, ...totals);
  return recoveries.map((recovery, i) => ({ ...recovery, measured: measured[i] ?? {}, phases, scale }));
}

/** Every way back that was taken: what it cost against what had been promised. */
export function JobRecoveries({ job }: { job: Job }) {
  const query = useQuery({ ...recoveriesQuery(job.id), refetchInterval: usePolling(15_000) });
  const navigate = useNavigate();
  if (!query.data || query.data.length === 0) return null; // the line below says that nothing happened
  const rows = rowsOf(query.data);
  return (
    <Panel title="Recoveries" about={plural(rows.length, "way back", "ways back")} flush>
      <DataTable
        label="Recoveries"
        data={rows}
        columns={columns}
        rowId={(row) => row.id}
        grow="phases"
        right={["took", "predicted", "regret", "lost"]}
        onOpen={(row) =>
          row.incident && void navigate({ to: "/incidents/$id", params: { id: row.incident } })
        }
      />
      <div className="border-line border-t px-4 py-2.5">
        <PhaseLegend phases={rows[0]?.phases ?? []} />
      </div>
    </Panel>
  );
}
