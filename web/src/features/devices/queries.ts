import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { client, unwrap } from "@/api/client";

// Under "nodes": events of a node also change the histories of its devices.
export const deviceKeys = {
  one: (device: string) => ["nodes", "device", device] as const,
  history: (device: string) => ["nodes", "device", device, "history"] as const,
};

export const deviceQuery = (device: string) =>
  queryOptions({
    queryKey: deviceKeys.one(device),
    queryFn: ({ signal }) =>
      unwrap(client.GET("/v1/devices/{device}", { signal, params: { path: { device } } })),
  });

export const deviceHistoryQuery = (device: string) =>
  infiniteQueryOptions({
    queryKey: deviceKeys.history(device),
    initialPageParam: undefined as string | undefined,
    queryFn: ({ signal, pageParam }) =>
      unwrap(
        client.GET("/v1/devices/{device}/history", {
          signal,
          params: { path: { device }, query: { limit: 100, cursor: pageParam } },
        }),
      ),
    getNextPageParam: (page) => page.next_cursor ?? undefined,
  });
