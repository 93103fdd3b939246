import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import type { Job, Recovery } from "@/api/types";
import { PhaseBar, PhaseLegend, phaseOrder } from "@/charts/phase-bar";
import { ranksText } from "@/features/incidents/lifecycle-model";
import { measuredParts } from "@/features/incidents/plan-model";
import { duration, humanize, plural } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { Age } from "@/ui/age";
import { Panel } from "@/ui/panel";
import { type Column, columnsFor, DataTable } from "@/ui/table";
import { Term } from "@/ui/term";
import { excessCostText } from "./decision-model";
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
    header: "Strategy",
    cell: ({ row }) => {
      const strategy = row.original.strategy ?? row.original.restore_strategy;
      return strategy ? humanize(strategy) : "none";
    },
  }),
  column.accessor("parts", {
    id: "phases",
    header: "Time by phase",
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
    header: "Duration",
    cell: ({ row }) => duration(row.original.seconds),
  }),
  column.accessor("planned_seconds", {
    id: "predicted",
    header: "Predicted",
    cell: ({ row }) => (
      <span className="text-ink-2">
        {duration(row.original.predicted_seconds ?? row.original.planned_seconds)}
      </span>
    ),
  }),
  column.accessor("excess_cost_seconds", {
    id: "excess",
    header: () => <Term name="excess cost">Excess cost</Term>,
    cell: ({ row }) => <span className="text-ink-2">{excessCostText(row.original)}</span>,
  }),
  column.accessor("steps_lost", {
    id: "lost",
    header: () => <Term name="steps lost">Steps lost</Term>,
    cell: ({ row }) => row.original.steps_lost ?? "–",
  }),
  column.accessor("outcome", { header: "Outcome", cell: ({ row }) => humanize(row.original.outcome) }),
  column.accessor("decision", {
    id: "evaluated",
    header: "Strategies evaluated",
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

/** The recoveries of the job with their predicted and actual costs. */
export function JobRecoveries({ job }: { job: Job }) {
  const query = useQuery({ ...recoveriesQuery(job.id), refetchInterval: usePolling(15_000) });
  const navigate = useNavigate();
  if (!query.data || query.data.length === 0) return null; // the time line below shows an empty state
  const rows = rowsOf(query.data);
  return (
    <Panel title="Recoveries" term="recovery" about={plural(rows.length, "recovery", "recoveries")} flush>
      <DataTable
        label="Recoveries"
        data={rows}
        columns={columns}
        rowId={(row) => row.id}
        grow="phases"
        right={["took", "predicted", "excess", "lost"]}
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
