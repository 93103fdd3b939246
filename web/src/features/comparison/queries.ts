import { queryOptions } from "@tanstack/react-query";
import { client, unwrap } from "@/api/client";

export interface Sides {
  before: string;
  after: string;
  node?: string;
  at?: number;
}

export const comparisonKeys = {
  cohorts: ["comparisons", "cohorts"] as const,
  sides: (sides: Sides) => ["comparisons", "sides", sides] as const,
  past: (id: string, before?: string) => ["comparisons", "past", id, before ?? ""] as const,
};

export const measuredCohortsQuery = () =>
  queryOptions({
    queryKey: comparisonKeys.cohorts,
    staleTime: 60_000,
    queryFn: async ({ signal }) =>
      (await unwrap(client.GET("/v1/cohort-comparisons/cohorts", { signal }))).items,
  });

export const comparisonQuery = (sides: Sides) =>
  queryOptions({
    queryKey: comparisonKeys.sides(sides),
    staleTime: 60_000,
    retry: false, // a failed comparison fails again
    queryFn: ({ signal }) =>
      unwrap(client.GET("/v1/cohort-comparisons", { signal, params: { query: { ...sides } } })),
  });

/** A validation compared with an earlier one of its node; by default the last one with results. */
export const pastQuery = (id: string, before?: string) =>
  queryOptions({
    queryKey: comparisonKeys.past(id, before),
    staleTime: 60_000,
    retry: false,
    queryFn: ({ signal }) =>
      unwrap(
        client.GET("/v1/validations/{id}/comparison", {
          signal,
          params: { path: { id }, query: { before } },
        }),
      ),
  });
