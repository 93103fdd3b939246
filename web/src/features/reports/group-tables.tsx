/** Reliability by team, by component, and by batch of GPUs. */
import type {
  BatchReliability,
  ComponentReliability,
  DetectorReliability,
  TeamReliability,
} from "@/api/types";
import { duration, integer, percent, plural } from "@/lib/format";
import { type Column, columnsFor, DataTable } from "@/ui/table";
import { componentLabel, falseDrains, gpuHours, hours, limits } from "./model";
import { Section } from "./section";

const team = columnsFor<TeamReliability>();
const teamColumns: Column<TeamReliability>[] = team.columns([
  team.accessor((row) => row.team ?? "No team", { id: "team", header: "Team" }),
  team.accessor("jobs", { header: "Jobs", cell: ({ row }) => integer(row.original.jobs) }),
  team.accessor("shared_jobs", {
    header: "In other teams too",
    cell: ({ row }) => integer(row.original.shared_jobs),
  }),
  team.accessor("ettr", { header: "Effective", cell: ({ row }) => percent(row.original.ettr) }),
  team.accessor("productive_gpu_hours", {
    header: "Productive GPU h",
    cell: ({ row }) => gpuHours(row.original.productive_gpu_hours),
  }),
  team.accessor("lost_gpu_hours", {
    header: "Lost GPU h",
    cell: ({ row }) => gpuHours(row.original.lost_gpu_hours),
  }),
]);

export function TeamTable({ teams }: { teams: TeamReliability[] }) {
  const shared = teams.some((row) => row.shared_jobs > 0);
  const about = shared ? "a job of two teams counts in each" : undefined;
  return (
    <Section title="Teams" about={about} rows={teams} empty="No teams, and no job ran in this time.">
      <DataTable
        label="Teams"
        data={teams}
        columns={teamColumns}
        rowId={(row) => row.team ?? ""}
        right={["jobs", "shared_jobs", "ettr", "productive_gpu_hours", "lost_gpu_hours"]}
        grow="team"
        columnClass={{
          jobs: "max-sm:hidden",
          shared_jobs: "max-md:hidden",
          productive_gpu_hours: "max-md:hidden",
        }}
        sorted
      />
    </Section>
  );
}

const component = columnsFor<ComponentReliability>();
const componentColumns: Column<ComponentReliability>[] = component.columns([
  component.accessor((row) => componentLabel[row.component], { id: "component", header: "Component" }),
  component.accessor((row) => row.between_failures.failures, {
    id: "failures",
    header: "Failures",
    cell: ({ row }) => integer(row.original.between_failures.failures),
  }),
  component.accessor("mean_repair_seconds", {
    header: "To recovery",
    cell: ({ row }) => duration(row.original.mean_repair_seconds),
  }),
  component.accessor((row) => row.between_failures.hours ?? Number.POSITIVE_INFINITY, {
    id: "between",
    header: "Between failures",
    cell: ({ row }) => hours(row.original.between_failures.hours),
  }),
  component.accessor("unit", {
    header: "Time of",
    cell: ({ row }) => (row.original.unit === "gpu" ? "GPUs" : "nodes"),
  }),
  component.accessor((row) => limits(row.between_failures, row.unit === "gpu" ? "GPUs" : "nodes"), {
    id: "limits",
    header: "Limits",
  }),
]);

export function ComponentTable({ components }: { components: ComponentReliability[] }) {
  return (
    <Section
      title="Components"
      about="GPU link: NVLink or PCIe; network: NIC, cable, or switch"
      rows={components}
      empty="No component is known."
    >
      <DataTable
        label="Components"
        data={components}
        columns={componentColumns}
        rowId={(row) => row.component}
        right={["failures", "mean_repair_seconds", "between"]}
        grow="limits"
        columnClass={{
          mean_repair_seconds: "max-md:hidden",
          unit: "max-md:hidden",
          limits: "max-md:hidden",
        }}
        sorted
      />
    </Section>
  );
}

const detector = columnsFor<DetectorReliability>();
const detectorColumns: Column<DetectorReliability>[] = detector.columns([
  detector.accessor("detector", { header: "Detector" }),
  detector.accessor("drains", { header: "Drains" }),
  detector.accessor("not_validated", { header: "Not validated" }),
  detector.accessor("undecided", { header: "Undecided" }),
  detector.accessor((row) => row.ratio ?? -1, {
    id: "false",
    header: "False drains",
    cell: ({ row }) => falseDrains(row.original),
  }),
]);

export function DetectorTable({ detectors }: { detectors: DetectorReliability[] }) {
  return (
    <Section title="Drains by detector" rows={detectors} empty="Mainstay drained no node for a finding.">
      <DataTable
        label="Drains by detector"
        data={detectors}
        columns={detectorColumns}
        rowId={(row) => row.detector}
        right={["drains", "not_validated", "undecided", "false"]}
        grow="detector"
        columnClass={{ drains: "max-sm:hidden", not_validated: "max-md:hidden", undecided: "max-md:hidden" }}
        sorted
      />
    </Section>
  );
}

const batch = columnsFor<BatchReliability>();
const batchColumns: Column<BatchReliability>[] = batch.columns([
  batch.accessor("model", { header: "GPU", cell: ({ row }) => row.original.model || "not reported" }),
  batch.accessor((row) => row.firmware ?? "not reported", { id: "firmware", header: "VBIOS" }),
  batch.accessor("gpus", { header: "GPUs", cell: ({ row }) => integer(row.original.gpus) }),
  batch.accessor((row) => row.between_failures.failures, {
    id: "failures",
    header: "Failures",
    cell: ({ row }) => integer(row.original.between_failures.failures),
  }),
  batch.accessor((row) => row.between_failures.hours ?? Number.POSITIVE_INFINITY, {
    id: "between",
    header: "Between failures",
    cell: ({ row }) => hours(row.original.between_failures.hours),
  }),
  batch.accessor((row) => limits(row.between_failures, "GPUs"), { id: "limits", header: "Limits" }),
]);

export function BatchTable({ batches, unknown }: { batches: BatchReliability[]; unknown: number }) {
  const about = unknown > 0 ? `${plural(unknown, "GPU failure")} of unknown batch` : "by model and VBIOS";
  return (
    <Section title="Batches of GPUs" about={about} rows={batches} empty="No GPUs are known.">
      <DataTable
        label="Batches of GPUs"
        data={batches}
        columns={batchColumns}
        rowId={(row) => `${row.model} ${row.firmware}`}
        right={["gpus", "failures", "between"]}
        grow="limits"
        columnClass={{ gpus: "max-sm:hidden", failures: "max-sm:hidden", limits: "max-md:hidden" }}
        sorted
      />
    </Section>
  );
}
