/** The processes of the service, and which of them does the work that one process does at a time. */
import { queryOptions, useQuery } from "@tanstack/react-query";
import { client, unwrap } from "@/api/client";
import type { Lease, Service, ServiceProcess } from "@/api/types";
import { duration, humanize, integer } from "@/lib/format";
import { usePolling } from "@/lib/live";
import type { StatusStyle } from "@/lib/status-styles";
import { Age } from "@/ui/age";
import { Page } from "@/ui/page";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { StatePill } from "@/ui/state-pill";
import { type Column, columnsFor, DataTable } from "@/ui/table";

const serviceQuery = () =>
  queryOptions({
    queryKey: ["cluster"],
    queryFn: ({ signal }) => unwrap(client.GET("/v1/cluster", { signal })),
  });

const states: Record<ServiceProcess["state"], StatusStyle> = {
  running: { label: "Running", tone: "healthy", glyph: "dot", about: "Reports on time" },
  silent: {
    label: "Silent",
    tone: "quarantined",
    glyph: "cross",
    about: "Has not reported for the time of a lease",
  },
  stopped: { label: "Stopped", tone: "unknown", glyph: "ring", about: "Ended in order" },
};

const purpose: Record<string, string> = {
  detection: "Evaluates events, silent nodes, and its share of detectors and jobs",
  "detection-1": "Evaluates its share of detectors and jobs",
  "detection-2": "Evaluates its share of detectors and jobs",
  "detection-3": "Evaluates its share of detectors and jobs",
  history: "Writes telemetry of finished hours to Parquet files",
  housekeeping: "Deletes old rows, telemetry, and changes",
  "node-states": "Marks nodes that stopped reporting or report again",
  remediation: "Proposes and carries out actions",
  notifications: "Decides which messages about incidents to send",
  "notification-delivery": "Sends messages about incidents",
  "remote-write": "Sends samples to the remote-write receiver",
  scraping: "Reads DCGM exporters",
};

const process = columnsFor<ServiceProcess>();
const processes: Column<ServiceProcess>[] = process.columns([
  process.accessor("url", { header: "Address", cell: ({ row }) => <Address process={row.original} /> }),
  process.accessor("state", {
    header: "State",
    cell: ({ row }) => <StatePill look={states[row.original.state]} quiet />,
  }),
  process.accessor("role", { header: "Role", cell: ({ row }) => humanize(row.original.role) }),
  process.accessor("started_at", {
    header: "Started",
    cell: ({ row }) => <Age at={row.original.started_at} />,
  }),
  process.accessor("seen_seconds", {
    header: "Last report",
    cell: ({ row }) => `${duration(row.original.seen_seconds)} ago`,
  }),
  process.accessor("pending_frames", {
    header: "Waiting frames",
    cell: ({ row }) => integer(row.original.pending_frames),
  }),
  process.accessor("lag_seconds", { header: "Lag", cell: ({ row }) => duration(row.original.lag_seconds) }),
  process.accessor("version", { header: "Version" }),
]);

function Address({ process: { url, host, pid, role } }: { process: ServiceProcess }) {
  return (
    <span className="block py-1.5">
      {url}
      <span className="block text-ink-3 text-xs">
        {host}, process {pid}
        {role === "gateway" && <span className="md:hidden">, gateway</span>}
      </span>
    </span>
  );
}

function leasesOf(service: Service): Column<Lease>[] {
  const url = new Map(service.processes.map((one) => [one.id, one.url]));
  const lease = columnsFor<Lease>();
  return lease.columns([
    lease.accessor("name", {
      header: "Work",
      cell: ({ row }) => humanize(row.original.name.replaceAll("-", "_")),
    }),
    lease.accessor((one) => purpose[one.name] ?? "", { id: "purpose", header: "Purpose" }),
    lease.accessor((one) => url.get(one.holder ?? "") ?? "", {
      id: "holder",
      header: "Done by",
      cell: ({ getValue }) => getValue() || <span className="text-quarantined">no process</span>,
    }),
    lease.accessor("epoch", { header: "Epoch", cell: ({ row }) => integer(row.original.epoch) }),
  ]);
}

export function ServicePage() {
  const query = useQuery({ ...serviceQuery(), refetchInterval: usePolling(5_000) });
  return (
    <Page title="Service" meta="The processes of Mainstay itself, and which of them does what.">
      <QueryView query={query}>{(service) => <Body service={service} />}</QueryView>
    </Page>
  );
}

function Body({ service }: { service: Service }) {
  return (
    <>
      <Panel
        title="Processes"
        about={service.shared ? undefined : "On SQLite, the service is one process"}
        flush
      >
        <DataTable
          label="Processes of the service"
          data={service.processes}
          columns={processes}
          rowId={(one) => one.id}
          right={["pending_frames", "lag_seconds", "seen_seconds"]}
          grow="url"
          columnClass={{
            role: "max-md:hidden",
            started_at: "max-md:hidden",
            seen_seconds: "max-md:hidden",
            pending_frames: "max-md:hidden",
            lag_seconds: "max-md:hidden",
            version: "max-md:hidden",
          }}
        />
      </Panel>
      <Panel title="Work of one process at a time" flush>
        <DataTable
          label="Work of one process at a time"
          data={service.leases}
          columns={leasesOf(service)}
          rowId={(one) => one.name}
          right={["epoch"]}
          grow="purpose"
          columnClass={{ purpose: "max-md:hidden", epoch: "max-md:hidden" }}
        />
      </Panel>
    </>
  );
}
