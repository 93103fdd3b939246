import { queryOptions } from "@tanstack/react-query";
import { client, fetchRaw, unwrap } from "@/api/client";
import type { FleetDeviceFindings, FleetLayout } from "@/api/types";
import { serverNow } from "@/lib/time";
import { type Slot, slotsOf } from "./map-model";

export const fleetKeys = {
  layout: ["layout"] as const,
  /** Below "jobs": what changes jobs changes which nodes they are on. */
  jobs: ["jobs", "of-nodes"] as const,
  signals: ["signals"] as const,
  targets: ["dcgm-targets"] as const,
  snapshot: (signal: string) => ["snapshot", signal] as const,
  /** Not below "snapshot": no event changes the past. */
  past: (at: number) => ["past-snapshot", at] as const,
  history: (seconds: number, until: number | undefined) => ["fleet-history", seconds, until] as const,
};

export interface Layout {
  columns: FleetLayout;
  /** Rack by rack. */
  slots: Slot[];
  etag: string | null;
}

export const layoutQuery = () =>
  queryOptions({
    queryKey: fleetKeys.layout,
    staleTime: 30_000,
    queryFn: async ({ signal, client: queryClient }): Promise<Layout> => {
      const known = queryClient.getQueryData<Layout>(fleetKeys.layout);
      const headers: Record<string, string> = known?.etag ? { "If-None-Match": known.etag } : {};
      const response = await fetchRaw("/v1/fleet/heatmap-layout", { signal, headers });
      if (response.status === 304 && known) return known;
      const columns = (await response.json()) as FleetLayout;
      return { columns, slots: slotsOf(columns), etag: response.headers.get("ETag") };
    },
  });

export const fleetJobsQuery = () =>
  queryOptions({
    queryKey: fleetKeys.jobs,
    queryFn: ({ signal }) => unwrap(client.GET("/v1/fleet/jobs", { signal })),
  });

export interface Snapshot {
  values: Uint8Array;
  /** Of states: what is found about single devices. */
  findings: FleetDeviceFindings | null;
  /** The values of bytes 0 and 250; null for a signal without a range (states, or no reports). */
  low: number | null;
  high: number | null;
  layout: string | null;
  time: number | null;
  /** Whether `time` was asked for. */
  past: boolean;
  /** States are known from this time on, in Unix seconds. */
  historySince: number | null;
}

const headerNumber = (response: Response, name: string): number | null => {
  const text = response.headers.get(name);
  const value = text === null || text === "" ? Number.NaN : Number(text);
  return Number.isFinite(value) ? value : null;
};

/** The newest values of a signal or, with `at`, the states at that time. */
export const snapshotQuery = (name: string, at?: number) =>
  queryOptions({
    queryKey: at === undefined ? fleetKeys.snapshot(name) : fleetKeys.past(at),
    queryFn: async ({ signal }): Promise<Snapshot> => {
      const query = at === undefined ? `signal=${encodeURIComponent(name)}` : `signal=state&at=${at}`;
      const ofStates = at !== undefined || name === "state";
      const [response, findings] = await Promise.all([
        fetchRaw(`/v1/fleet/heatmap?${query}`, { signal }),
        ofStates
          ? unwrap(client.GET("/v1/fleet/device-findings", { signal, params: { query: { at } } }))
          : null,
      ]);
      return {
        values: new Uint8Array(await response.arrayBuffer()),
        findings,
        low: headerNumber(response, "X-Mainstay-Low"),
        high: headerNumber(response, "X-Mainstay-High"),
        layout: response.headers.get("X-Mainstay-Heatmap-Layout"),
        time: headerNumber(response, "X-Mainstay-Time"),
        past: at !== undefined,
        historySince: headerNumber(response, "X-Mainstay-History-Since"),
      };
    },
  });

const BUCKETS = 120;

/** Nodes by state in the `seconds` before `until`; without it, before now. */
export const historyQuery = (seconds: number, until: number | undefined) =>
  queryOptions({
    queryKey: fleetKeys.history(seconds, until),
    queryFn: async ({ signal }) => {
      const end = until ?? serverNow();
      const query = { since: end - seconds, until: end, buckets: BUCKETS };
      return unwrap(client.GET("/v1/fleet/history", { signal, params: { query } }));
    },
  });

export const signalsQuery = () =>
  queryOptions({
    queryKey: fleetKeys.signals,
    staleTime: Number.POSITIVE_INFINITY,
    queryFn: async ({ signal }) => (await unwrap(client.GET("/v1/signals", { signal }))).items,
  });

export const dcgmTargetsQuery = () =>
  queryOptions({
    queryKey: fleetKeys.targets,
    queryFn: async ({ signal }) =>
      (await unwrap(client.GET("/v1/ingest/dcgm-targets", { signal, params: { query: { limit: 200 } } })))
        .items,
  });
