import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { client, unwrap } from "@/api/client";
import { batched } from "@/lib/batched";

// Under "nodes": events of a node also change the histories of its devices.
export const deviceKeys = {
  one: (device: string) => ["nodes", "device", device] as const,
  history: (device: string) => ["nodes", "device", device, "history"] as const,
  at: (node: string, device: string) => ["nodes", "devices", node, device] as const,
};

/** A page shows many positions: those that are asked for at the same time are one request. */
const devicesAt = batched(50, async (places: { node: string; device: string }[]) => {
  const node = [...new Set(places.map((place) => place.node))];
  const device = [...new Set(places.map((place) => place.device))];
  const query = { node, device, limit: 200 };
  const { items } = await unwrap(client.GET("/v1/devices", { params: { query } }));
  return places.map(
    (place) => items.find((one) => one.node === place.node && one.id === place.device) ?? null,
  );
});

/** The device at a position of a node; null if there is none. */
export const deviceAtQuery = (node: string, device: string) =>
  queryOptions({ queryKey: deviceKeys.at(node, device), queryFn: () => devicesAt({ node, device }) });

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
