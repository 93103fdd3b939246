import { infiniteQueryOptions, keepPreviousData, queryOptions } from "@tanstack/react-query";
import { client, unwrap } from "@/api/client";
import type { DeliveryState } from "@/api/types";

export interface DeliveryFilter {
  receiver?: string;
  state?: DeliveryState;
  incident?: string;
}

export const notificationKeys = {
  all: ["notifications"] as const,
  config: ["notifications", "config"] as const,
  log: (filter: DeliveryFilter) => ["notifications", "log", filter] as const,
};

export const notificationConfigQuery = () =>
  queryOptions({
    queryKey: notificationKeys.config,
    queryFn: ({ signal }) => unwrap(client.GET("/v1/notifications/config", { signal })),
  });

export const deliveriesQuery = (filter: DeliveryFilter) =>
  infiniteQueryOptions({
    queryKey: notificationKeys.log(filter),
    initialPageParam: undefined as string | undefined,
    queryFn: ({ signal, pageParam }) =>
      unwrap(
        client.GET("/v1/notifications", {
          signal,
          params: { query: { ...filter, limit: 50, cursor: pageParam } },
        }),
      ),
    getNextPageParam: (page) => page.next_cursor ?? undefined,
    placeholderData: keepPreviousData,
  });
