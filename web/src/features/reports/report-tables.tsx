/** The tables of a reliability report. */
import { Link } from "@tanstack/react-router";
import type {
  CauseReliability,
  CohortReliability,
  JobReliability,
  NodeReliability,
  Report,
} from "@/api/types";
import { type Cause, causeLabel } from "@/features/incidents/cause";
import { duration, integer, percent } from "@/lib/format";
import { type Column, columnsFor, DataTable } from "@/ui/table";
import { BatchTable, ComponentTable, DetectorTable, TeamTable } from "./group-tables";
import { gpuHours, hours, limits } from "./model";
import { Section } from "./section";

const job = columnsFor<JobReliability>();
const jobs: Column<JobReliability>[] = job.columns([
  job.accessor("name", {
    header: "Job",
    cell: ({ row }) => (
      <Link to="/jobs/$id" params={{ id: row.original.id }} search={{}} className="hover:underline">
        {row.original.name}
      </Link>
    ),
  }),
  job.accessor("ranks", { header: "Ranks", cell: ({ row }) => integer(row.original.ranks) }),
  job.accessor("hours", { header: "Wall time", cell: ({ row }) => hours(row.original.hours) }),
  job.accessor("ettr", { header: "Effective", cell: ({ row }) => percent(row.original.ettr) }),
  job.accessor("lost_gpu_hours", {
    header: "Lost GPU h",
    cell: ({ row }) => gpuHours(row.original.lost_gpu_hours),
  }),
  job.accessor("recoveries", { header: "Recoveries", cell: ({ row }) => integer(row.original.recoveries) }),
  job.accessor("steps_lost", {
    header: "Steps repeated",
    cell: ({ row }) => integer(row.original.steps_lost),
  }),
]);

const cause = columnsFor<CauseReliability>();
const causes: Column<CauseReliability>[] = cause.columns([
  cause.accessor("cause", {
    header: "Cause",
    cell: ({ row }) =>
      row.original.cause === "unknown" ? "Not known" : causeLabel(row.original.cause as Cause).label,
  }),
  cause.accessor("incidents", { header: "Incidents", cell: ({ row }) => integer(row.original.incidents) }),
  cause.accessor("lost_gpu_hours", {
    header: "Lost GPU h",
    cell: ({ row }) => gpuHours(row.original.lost_gpu_hours),
  }),
  cause.accessor("mean_repair_seconds", {
    header: "To recovery",
    cell: ({ row }) => duration(row.original.mean_repair_seconds),
  }),
]);

const cohort = columnsFor<CohortReliability>();
const cohorts: Column<CohortReliability>[] = cohort.columns([
  cohort.accessor("cohort", { header: "Cohort", cell: ({ row }) => row.original.cohort || "not reported" }),
  cohort.accessor("nodes", { header: "Nodes", cell: ({ row }) => integer(row.original.nodes) }),
  cohort.accessor((row) => row.between_failures.hours ?? Number.POSITIVE_INFINITY, {
    id: "between",
    header: "Between failures",
    cell: ({ row }) => hours(row.original.between_failures.hours),
  }),
  cohort.accessor("mean_repair_seconds", {
    header: "To recovery",
    cell: ({ row }) => duration(row.original.mean_repair_seconds),
  }),
  cohort.accessor((row) => limits(row.between_failures), { id: "limits", header: "Limits" }),
]);

const node = columnsFor<NodeReliability>();
const nodes: Column<NodeReliability>[] = node.columns([
  node.accessor("name", {
    header: "Node",
    cell: ({ row }) => (
      <Link to="/nodes/$name" params={{ name: row.original.name }} search={{}} className="hover:underline">
        {row.original.name}
      </Link>
    ),
  }),
  node.accessor("incidents", { header: "Incidents", cell: ({ row }) => integer(row.original.incidents) }),
  node.accessor("out_of_service_hours", {
    header: "Out",
    cell: ({ row }) => hours(row.original.out_of_service_hours),
  }),
]);

export function Tables({ report }: { report: Report }) {
  return (
    <>
      <TeamTable teams={report.teams} />
      <Section title="Jobs" about="those that lost most" rows={report.jobs} empty="No job ran in this time.">
        <DataTable
          label="Jobs"
          data={report.jobs}
          columns={jobs}
          rowId={(row) => row.id}
          right={["ranks", "hours", "ettr", "lost_gpu_hours", "recoveries", "steps_lost"]}
          grow="name"
          columnClass={{
            ranks: "max-md:hidden",
            hours: "max-md:hidden",
            recoveries: "max-sm:hidden",
            steps_lost: "max-md:hidden",
          }}
          sorted
        />
      </Section>
      <div className="grid items-start gap-4 xl:grid-cols-2">
        <Section title="Causes" rows={report.causes} empty="No incident in this time.">
          <DataTable
            label="Causes"
            data={report.causes}
            columns={causes}
            rowId={(row) => row.cause}
            right={["incidents", "lost_gpu_hours", "mean_repair_seconds"]}
            grow="cause"
            columnClass={{ mean_repair_seconds: "max-sm:hidden" }}
            sorted
          />
        </Section>
        <Section title="Nodes" about="those with most incidents" rows={report.nodes} empty="No node failed.">
          <DataTable
            label="Nodes"
            data={report.nodes}
            columns={nodes}
            rowId={(row) => row.name}
            right={["incidents", "out_of_service_hours"]}
            grow="name"
            sorted
          />
        </Section>
      </div>
      <DetectorTable detectors={report.detectors} />
      <ComponentTable components={report.components} />
      <BatchTable batches={report.batches} unknown={report.failures_in_no_batch} />
      <Section title="Cohorts" rows={report.cohorts} empty="No nodes are known.">
        <DataTable
          label="Cohorts"
          data={report.cohorts}
          columns={cohorts}
          rowId={(row) => row.cohort}
          right={["nodes", "between", "mean_repair_seconds"]}
          grow="limits"
          columnClass={{ limits: "max-sm:hidden", mean_repair_seconds: "max-sm:hidden" }}
          sorted
        />
      </Section>
    </>
  );
}
