import { infiniteQueryOptions, keepPreviousData, queryOptions } from "@tanstack/react-query";
import { client, unwrap } from "@/api/client";

export interface ValidationFilter {
  node?: string;
  sweep?: string;
}

export const validationKeys = {
  all: ["validations"] as const,
  list: (filter: ValidationFilter) => ["validations", "list", filter] as const,
  one: (id: string) => ["validations", "one", id] as const,
  suites: ["suites"] as const,
  sweeps: ["sweeps"] as const,
  criteria: ["criteria"] as const,
};

export const suitesQuery = () =>
  queryOptions({
    queryKey: validationKeys.suites,
    staleTime: 300_000,
    queryFn: async ({ signal }) => {
      const body = await unwrap(client.GET("/v1/suites", { signal }));
      return Array.isArray(body) ? (body as typeof body.items) : body.items;
    },
  });

export const validationsQuery = (filter: ValidationFilter) =>
  infiniteQueryOptions({
    queryKey: validationKeys.list(filter),
    initialPageParam: undefined as string | undefined,
    queryFn: ({ signal, pageParam }) =>
      unwrap(
        client.GET("/v1/validations", {
          signal,
          params: { query: { ...filter, limit: 50, cursor: pageParam } },
        }),
      ),
    getNextPageParam: (page) => page.next_cursor ?? undefined,
    placeholderData: keepPreviousData,
  });

export const validationQuery = (id: string) =>
  queryOptions({
    queryKey: validationKeys.one(id),
    queryFn: ({ signal }) => unwrap(client.GET("/v1/validations/{id}", { signal, params: { path: { id } } })),
  });

export const sweepsQuery = () =>
  queryOptions({
    queryKey: validationKeys.sweeps,
    queryFn: async ({ signal }) =>
      (await unwrap(client.GET("/v1/sweeps", { signal, params: { query: { limit: 200 } } }))).items,
  });

export const criteriaQuery = () =>
  queryOptions({
    queryKey: validationKeys.criteria,
    queryFn: async ({ signal }) =>
      (await unwrap(client.GET("/v1/criteria", { signal, params: { query: { limit: 500 } } }))).items,
  });
