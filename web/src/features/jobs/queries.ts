import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { client, unwrap } from "@/api/client";

export const jobKeys = {
  all: ["jobs"] as const,
  list: ["jobs", "list"] as const,
  one: (id: string) => ["jobs", "one", id] as const,
  steps: (id: string, from?: number, to?: number) => ["steps", id, from, to] as const,
  requests: (id: string) => ["jobs", "requests", id] as const,
  checkpoints: (id: string) => ["jobs", "checkpoints", id] as const,
  recoveries: (id: string) => ["jobs", "recoveries", id] as const,
  events: (id: string) => ["events", "job", id] as const,
};

export const jobsQuery = () =>
  queryOptions({
    queryKey: jobKeys.list,
    queryFn: ({ signal }) => unwrap(client.GET("/v1/jobs", { signal, params: { query: { limit: 200 } } })),
  });

export const jobQuery = (id: string) =>
  queryOptions({
    queryKey: jobKeys.one(id),
    queryFn: ({ signal }) => unwrap(client.GET("/v1/jobs/{id}", { signal, params: { path: { id } } })),
  });

export const stepsQuery = (id: string, from?: number, to?: number) =>
  queryOptions({
    queryKey: jobKeys.steps(id, from, to),
    placeholderData: keepPreviousData,
    queryFn: ({ signal }) =>
      unwrap(
        client.GET("/v1/jobs/{id}/steps", {
          signal,
          params: { path: { id }, query: { from_step: from, to_step: to, points: 400 } },
        }),
      ),
  });

export const checkpointsQuery = (id: string) =>
  queryOptions({
    queryKey: jobKeys.checkpoints(id),
    queryFn: ({ signal }) =>
      unwrap(client.GET("/v1/jobs/{id}/checkpoints", { signal, params: { path: { id } } })),
  });

export const jobEventsQuery = (job: string) =>
  queryOptions({
    queryKey: jobKeys.events(job),
    queryFn: ({ signal }) =>
      unwrap(client.GET("/v1/events", { signal, params: { query: { job, limit: 100 } } })),
  });

export const recoveriesQuery = (id: string) =>
  queryOptions({
    queryKey: jobKeys.recoveries(id),
    queryFn: async ({ signal }) =>
      (
        await unwrap(
          client.GET("/v1/jobs/{id}/recoveries", { signal, params: { path: { id }, query: { limit: 50 } } }),
        )
      ).items,
  });

export const jobRequestsQuery = (id: string) =>
  queryOptions({
    queryKey: jobKeys.requests(id),
    queryFn: async ({ signal }) =>
      (
        await unwrap(
          client.GET("/v1/jobs/{id}/requests", {
            signal,
            params: { path: { id }, query: { limit: 20 } },
          }),
        )
      ).items,
  });
