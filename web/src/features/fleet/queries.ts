import { queryOptions } from "@tanstack/react-query";
import { client, fetchRaw, unwrap } from "@/api/client";
import type { FleetLayout } from "@/api/types";
import { type Slot, slotsOf } from "./map-model";

export const fleetKeys = {
  layout: ["layout"] as const,
  signals: ["signals"] as const,
  targets: ["dcgm-targets"] as const,
  snapshot: (signal: string) => ["snapshot", signal] as const,
};

export interface Layout {
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
      return { slots: slotsOf((await response.json()) as FleetLayout), etag: response.headers.get("ETag") };
    },
  });

export interface Snapshot {
  values: Uint8Array;
  /** The values of bytes 0 and 250; null for a signal without a range (states, or no reports). */
  low: number | null;
  high: number | null;
  layout: string | null;
  time: number | null;
}

const headerNumber = (response: Response, name: string): number | null => {
  const text = response.headers.get(name);
  const value = text === null || text === "" ? Number.NaN : Number(text);
  return Number.isFinite(value) ? value : null;
};

export const snapshotQuery = (name: string) =>
  queryOptions({
    queryKey: fleetKeys.snapshot(name),
    queryFn: async ({ signal }): Promise<Snapshot> => {
      const response = await fetchRaw(`/v1/fleet/heatmap?signal=${encodeURIComponent(name)}`, { signal });
      return {
        values: new Uint8Array(await response.arrayBuffer()),
        low: headerNumber(response, "X-Mainstay-Low"),
        high: headerNumber(response, "X-Mainstay-High"),
        layout: response.headers.get("X-Mainstay-Heatmap-Layout"),
        time: headerNumber(response, "X-Mainstay-Time"),
      };
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
