/** The checkpoints of a job: every step, how safe it is, and what its deletion costs. */
import { useQuery } from "@tanstack/react-query";
import { getRouteApi } from "@tanstack/react-router";
import { useMemo, useState } from "react";
import type { CheckpointStep, Checkpoints, Job } from "@/api/types";
import { bytes, integer, plural } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { checkpointStep, statusStyleOf } from "@/lib/status-styles";
import { useNow } from "@/lib/time";
import { Age } from "@/ui/age";
import { CopyMenu, curl } from "@/ui/copy";
import { Facts } from "@/ui/facts";
import { Glyph } from "@/ui/glyph";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { StatePill } from "@/ui/state-pill";
import { type Column, columnsFor, DataTable } from "@/ui/table";
import { CheckpointDetail } from "./checkpoint-detail";
import {
  directoryFacts,
  isStale,
  isUsable,
  levelText,
  restoreText,
  shareText,
  stepsText,
  survivesText,
} from "./checkpoint-model";
import {
  type Deletion,
  deletionOf,
  deletionSeconds,
  deletionText,
  nextRestores,
  nextRestoreText,
  stepsOf,
} from "./checkpoint-restore";
import { checkpointsQuery } from "./queries";

const route = getRouteApi("/shell/jobs/$id");
/** A step with what its deletion costs, and whether the next restore takes it. */
type Row = CheckpointStep & { deletion: Deletion; next: boolean };

const column = columnsFor<Row>();

const columns: Column<Row>[] = column.columns([
  column.accessor("step", { header: "Step", cell: ({ row }) => integer(row.original.step) }),
  column.accessor("state", {
    header: "State",
    cell: ({ row }) => (
      <span className="flex items-center gap-x-2">
        <StatePill look={statusStyleOf(checkpointStep, row.original.state)} quiet />
        {row.original.next && (
          <span className="font-medium text-ink text-xs max-sm:hidden">next restore</span>
        )}
        {row.original.quantized && <span className="text-ink-3 text-xs max-sm:hidden">quantized</span>}
        {row.original.pinned && <span className="text-ink-3 text-xs max-sm:hidden">pinned</span>}
      </span>
    ),
  }),
  column.accessor((step) => step.time ?? 0, {
    id: "age",
    header: "Age",
    cell: ({ row }) => (row.original.time === null ? "–" : <Age at={row.original.time} suffix="" />),
  }),
  column.accessor("disk_bytes", {
    id: "size",
    header: "Size on disk",
    cell: ({ row }) => (
      <>
        {bytes(row.original.disk_bytes)}
        <span className="max-sm:hidden">{shareText(row.original)}</span>
      </>
    ),
  }),
  column.accessor(levelText, { id: "level", header: "Level" }),
  column.accessor((step) => step.bases.length, {
    id: "bases",
    header: "Built on",
    cell: ({ row }) => basesText(row.original.bases),
  }),
  column.accessor(survivesText, {
    id: "survives",
    header: "Survives",
    cell: ({ row }) => <span className="block truncate text-ink-2">{survivesText(row.original)}</span>,
  }),
  column.accessor((step) => step.restore_seconds ?? -1, {
    id: "restore",
    header: "Time to read",
    cell: ({ row }) => restoreText(row.original),
  }),
  column.accessor(({ deletion }) => deletionSeconds(deletion), {
    id: "deletion",
    header: "Deletion costs",
    cell: ({ row: { original } }) => (
      <span className={deletionSeconds(original.deletion) > 0 ? "text-ink" : "text-ink-3"}>
        {deletionText(original, original.deletion)}
      </span>
    ),
  }),
]) as Column<Row>[];

const basesText = (bases: readonly number[]): string =>
  bases.length > 2 ? plural(bases.length, "step") : stepsText(bases) || "–";

/** Columns that say nothing of any step are left out. */
const columnsOf = (steps: readonly CheckpointStep[]): Column<Row>[] => {
  const empty = new Set([
    ...(steps.some((step) => step.bases.length > 0) ? [] : ["bases"]),
    ...(steps.some((step) => step.restore_seconds !== null) ? [] : ["restore"]),
  ]);
  return columns.filter(({ id }) => id === undefined || !empty.has(id));
};

function rowsOf(steps: readonly CheckpointStep[]): Row[] {
  const next = Object.values(nextRestores(steps));
  return steps.map((step) => ({ ...step, deletion: deletionOf(step, steps), next: next.includes(step) }));
}

/** Narrow screens keep step, state, and size; the panel of the selected step has the rest. */
const hidden = {
  age: "max-sm:hidden",
  level: "max-lg:hidden",
  bases: "max-2xl:hidden",
  survives: "max-2xl:hidden",
  restore: "max-md:hidden",
  deletion: "max-md:hidden",
};

export function JobCheckpoints({ job }: { job: Job }) {
  const query = useQuery({ ...checkpointsQuery(job.id), refetchInterval: usePolling(8_000, 4_000) });
  return (
    <QueryView query={query}>
      {({ checkpoints }) =>
        checkpoints === null ? (
          <Panel>
            <NothingReported job={job} />
          </Panel>
        ) : (
          <Report job={job} reported={checkpoints} />
        )
      }
    </QueryView>
  );
}

function NothingReported({ job }: { job: Job }) {
  if (job.protection.run)
    return (
      <Empty title="No report about checkpoints yet.">
        The coordinator reports them within seconds after the job has formed. A launcher of an older version
        does not report them.
      </Empty>
    );
  return (
    <Empty title="Checkpoints are off.">
      Start the job with{" "}
      <code className="font-mono text-xs">
        mainstay run --checkpoint-dir DIR --checkpoint-interval 200 train.py
      </code>
      . Without an interval, Mainstay writes a checkpoint when the job ends.
    </Empty>
  );
}

function Report({ job, reported }: { job: Job; reported: Checkpoints }) {
  const { step: wanted } = route.useSearch();
  const navigate = route.useNavigate();
  const [sort, setSort] = useState("-step");
  const steps = useMemo(() => stepsOf(job, reported.steps), [job, reported.steps]);
  const rows = useMemo(() => rowsOf(steps), [steps]);
  const selected = steps.find(({ step }) => step === wanted) ?? steps.find(isUsable) ?? steps[0];
  return (
    <div className="grid items-start gap-4 xl:grid-cols-[minmax(0,1fr)_22rem]">
      <Panel
        title="Checkpoints"
        term="checkpoint"
        about={<ReadAt job={job} reported={reported} />}
        aside={<CopyMenu commands={commands(job, reported)} />}
        flush
      >
        {steps.length > 0 && <p className="px-4 pb-2 text-ink-2 text-sm">{nextRestoreText(steps)}</p>}
        {steps.length === 0 ? (
          <div className="px-4 pb-3">
            <Empty title="No checkpoints yet.">{whenNext(job)}</Empty>
          </div>
        ) : (
          <DataTable
            label="Checkpoints"
            data={rows}
            columns={columnsOf(steps)}
            rowId={(step) => String(step.step)}
            sort={sort}
            onSort={setSort}
            right={["step", "size", "restore"]}
            grow="survives"
            columnClass={hidden}
            selected={selected && String(selected.step)}
            onOpen={({ step }) =>
              void navigate({ search: (old) => ({ ...old, step }), replace: true, resetScroll: false })
            }
          />
        )}
        {reported.omitted > 0 && (
          <p className="border-line border-t px-4 py-2 text-ink-3 text-xs">
            {plural(reported.omitted, "older step")} not listed: see mainstay checkpoint ls.
          </p>
        )}
      </Panel>
      <div className="flex min-w-0 flex-col gap-4 xl:sticky xl:top-4">
        {selected && <CheckpointDetail step={selected} steps={steps} />}
        <Panel title="Checkpoint directory">
          <Facts facts={directoryFacts(reported)} />
        </Panel>
      </div>
    </div>
  );
}

const whenNext = (job: Job): string =>
  job.protection.disk_every === null
    ? "The job writes one when it ends."
    : `The job writes one every ${plural(job.protection.disk_every, "step")}.`;

const commands = (job: Job, reported: Checkpoints) => [
  curl(`/v1/jobs/${encodeURIComponent(job.id)}/checkpoints`),
  { label: "list on a node", text: `mainstay checkpoint ls ${reported.directory}` },
];

function ReadAt({ job, reported }: { job: Job; reported: Checkpoints }) {
  const stale = isStale(job, reported, useNow());
  return (
    <span className="inline-flex items-center gap-1.5">
      {stale && <Glyph name="half" tone="suspect" size={11} />}
      <span>
        {stale && "Stale: the directory or the coordinator does not answer; "}directory read{" "}
        <Age at={reported.time} />
      </span>
    </span>
  );
}
