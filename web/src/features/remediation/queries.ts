import { infiniteQueryOptions, keepPreviousData, queryOptions } from "@tanstack/react-query";
import { client, unwrap } from "@/api/client";
import type { RemediationState } from "@/api/types";

export interface RemediationFilter {
  state?: RemediationState;
  node?: string;
}

export const remediationKeys = {
  all: ["remediations"] as const,
  list: (filter: RemediationFilter) => ["remediations", "list", filter] as const,
  recent: (filter: RemediationFilter) => ["remediations", "recent", filter] as const,
  status: ["remediations", "status"] as const,
};

export const remediationsQuery = (filter: RemediationFilter) =>
  infiniteQueryOptions({
    queryKey: remediationKeys.list(filter),
    initialPageParam: undefined as string | undefined,
    queryFn: ({ signal, pageParam }) =>
      unwrap(
        client.GET("/v1/remediations", {
          signal,
          params: { query: { ...filter, limit: 50, cursor: pageParam } },
        }),
      ),
    getNextPageParam: (page) => page.next_cursor ?? undefined,
    placeholderData: keepPreviousData,
  });

/** The newest proposals in one page. */
export const recentRemediationsQuery = (filter: RemediationFilter = {}) =>
  queryOptions({
    queryKey: remediationKeys.recent(filter),
    queryFn: async ({ signal }) =>
      (await unwrap(client.GET("/v1/remediations", { signal, params: { query: { ...filter, limit: 100 } } })))
        .items,
  });

export const remediationStatusQuery = () =>
  queryOptions({
    queryKey: remediationKeys.status,
    queryFn: ({ signal }) => unwrap(client.GET("/v1/remediation-status", { signal })),
  });
