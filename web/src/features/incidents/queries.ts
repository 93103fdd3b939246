import { infiniteQueryOptions, keepPreviousData, queryOptions } from "@tanstack/react-query";
import { client, unwrap } from "@/api/client";
import type { IncidentState } from "@/api/types";
import type { Cause } from "./cause";

export interface IncidentFilter {
  cause?: Cause;
  state?: IncidentState;
  job?: string;
  node?: string;
}

export const incidentKeys = {
  all: ["incidents"] as const,
  list: (filter: IncidentFilter) => ["incidents", "list", filter] as const,
  recent: (filter: IncidentFilter) => ["incidents", "recent", filter] as const,
  one: (id: string) => ["incidents", "one", id] as const,
  stacks: (job: string) => ["events", "stacks", job] as const,
};

export const incidentsQuery = (filter: IncidentFilter) =>
  infiniteQueryOptions({
    queryKey: incidentKeys.list(filter),
    initialPageParam: undefined as string | undefined,
    queryFn: ({ signal, pageParam }) =>
      unwrap(
        client.GET("/v1/incidents", {
          signal,
          params: { query: { ...filter, limit: 100, cursor: pageParam } },
        }),
      ),
    getNextPageParam: (page) => page.next_cursor ?? undefined,
    placeholderData: keepPreviousData,
  });

/** The newest incidents in one page, for a time line. */
export const recentIncidentsQuery = (filter: IncidentFilter = {}) =>
  queryOptions({
    queryKey: incidentKeys.recent(filter),
    queryFn: async ({ signal }) =>
      (await unwrap(client.GET("/v1/incidents", { signal, params: { query: { ...filter, limit: 200 } } })))
        .items,
  });

export const incidentQuery = (id: string) =>
  queryOptions({
    queryKey: incidentKeys.one(id),
    queryFn: ({ signal }) => unwrap(client.GET("/v1/incidents/{id}", { signal, params: { path: { id } } })),
  });

/** The newest stack dumps of a job. Only suspect ranks are dumped, so there are few. */
export const stackEventsQuery = (job: string) =>
  queryOptions({
    queryKey: incidentKeys.stacks(job),
    queryFn: async ({ signal }) =>
      (
        await unwrap(
          client.GET("/v1/events", { signal, params: { query: { job, kind: "stack_dump", limit: 50 } } }),
        )
      ).items,
  });
