/** The checkpoints of a job: every step, how safe it is, and what its deletion costs. */
import { useQuery } from "@tanstack/react-query";
import { getRouteApi } from "@tanstack/react-router";
import { useState } from "react";
import type { CheckpointStep, Checkpoints, Job } from "@/api/types";
import { integer, plural } from "@/lib/format";
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
  deletionText,
  directoryFacts,
  isStale,
  levelText,
  newestUsable,
  restoreText,
  sizeText,
  stepsText,
  survivesText,
} from "./checkpoint-model";
import { checkpointsQuery } from "./queries";

const route = getRouteApi("/shell/jobs/$id");
const column = columnsFor<CheckpointStep>();

const columns: Column<CheckpointStep>[] = column.columns([
  column.accessor("step", { header: "Step", cell: ({ row }) => integer(row.original.step) }),
  column.accessor("state", {
    header: "State",
    cell: ({ row }) => (
      <span className="flex items-center gap-x-2 max-sm:flex-col max-sm:items-start">
        <StatePill look={statusStyleOf(checkpointStep, row.original.state)} quiet />
        {row.original.quantized && <span className="text-ink-3 text-xs">quantized</span>}
        {row.original.pinned && <span className="text-ink-3 text-xs">pinned</span>}
      </span>
    ),
  }),
  column.accessor((step) => step.time ?? 0, {
    id: "age",
    header: "Age",
    cell: ({ row }) => (row.original.time === null ? "–" : <Age at={row.original.time} />),
  }),
  column.accessor("disk_bytes", {
    id: "size",
    header: "Size on disk",
    cell: ({ row }) => sizeText(row.original),
  }),
  column.accessor(levelText, { id: "level", header: "Level" }),
  column.accessor((step) => step.bases.length, {
    id: "bases",
    header: "Built on",
    cell: ({ row }) => stepsText(row.original.bases) || "–",
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
  column.accessor((step) => step.seconds_lost ?? -1, {
    id: "deletion",
    header: "Deletion costs",
    cell: ({ row }) => deletionText(row.original),
  }),
]) as Column<CheckpointStep>[];

/** Narrow screens keep step, state, and size; the panel of the selected step has the rest. */
const hidden = {
  age: "max-sm:hidden",
  level: "max-lg:hidden",
  bases: "max-md:hidden",
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
  const { steps } = reported;
  const selected = steps.find(({ step }) => step === wanted) ?? newestUsable(steps) ?? steps[0];
  return (
    <div className="grid items-start gap-4 xl:grid-cols-[minmax(0,1fr)_22rem]">
      <Panel
        title="Checkpoints"
        term="checkpoint"
        about={<ReadAt job={job} reported={reported} />}
        aside={<CopyMenu commands={commands(job, reported)} />}
        flush
      >
        {steps.length === 0 ? (
          <div className="px-4 pb-3">
            <Empty title="No checkpoints yet.">{whenNext(job)}</Empty>
          </div>
        ) : (
          <DataTable
            label="Checkpoints"
            data={steps}
            columns={columns}
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
      <div className="flex min-w-0 flex-col gap-4">
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
