import { infiniteQueryOptions, keepPreviousData, queryOptions } from "@tanstack/react-query";
import { client, unwrap } from "@/api/client";
import { ProblemError } from "@/api/problem";
import type { Validation } from "@/api/types";
import type { SweepBody } from "./sweep-form";

export interface ValidationFilter {
  node?: string;
  sweep?: string;
}

export interface CriterionKey {
  cohort: string;
  benchmark: string;
  metric: string;
}

export const validationKeys = {
  all: ["validations"] as const,
  list: (filter: ValidationFilter) => ["validations", "list", filter] as const,
  one: (id: string) => ["validations", "one", id] as const,
  run: (id: string) => ["validations", "run", id] as const,
  suites: ["suites"] as const,
  sweeps: ["sweeps"] as const,
  sweep: (id: string) => ["sweeps", "one", id] as const,
  criteria: ["criteria"] as const,
  criterion: (key: CriterionKey, validation?: string) => ["criteria", "one", key, validation ?? ""] as const,
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

/** The most nodes of a run that are listed. */
export const MOST_OF_RUN = 4000;

/** The validations of one run, without their results. `more`: the list is incomplete. */
export const runQuery = (run: string) =>
  queryOptions({
    queryKey: validationKeys.run(run),
    queryFn: async ({ signal }) => {
      const items: Validation[] = [];
      let cursor: string | undefined;
      do {
        const query = { run, results: false, limit: 500, cursor };
        const page = await unwrap(client.GET("/v1/validations", { signal, params: { query } }));
        items.push(...page.items);
        cursor = page.next_cursor ?? undefined;
      } while (cursor && items.length < MOST_OF_RUN);
      return { items, more: cursor !== undefined };
    },
  });

export const sweepsQuery = () =>
  queryOptions({
    queryKey: validationKeys.sweeps,
    queryFn: async ({ signal }) =>
      (await unwrap(client.GET("/v1/sweeps", { signal, params: { query: { limit: 200 } } }))).items,
  });

export const sweepQuery = (id: string) =>
  queryOptions({
    queryKey: validationKeys.sweep(id),
    queryFn: ({ signal }) => unwrap(client.GET("/v1/sweeps/{id}", { signal, params: { path: { id } } })),
  });

/** What a run of this sweep would do now. A change while typing replaces the question before it is sent. */
export const sweepPreviewQuery = (body: SweepBody) =>
  queryOptions({
    queryKey: ["sweep-preview", body],
    gcTime: 0,
    retry: false,
    placeholderData: keepPreviousData,
    queryFn: async ({ signal }) => {
      await new Promise((resolve) => setTimeout(resolve, 300));
      return unwrap(client.POST("/v1/sweeps:preview", { signal, body }));
    },
  });

export const criteriaQuery = () =>
  queryOptions({
    queryKey: validationKeys.criteria,
    queryFn: async ({ signal }) =>
      (await unwrap(client.GET("/v1/criteria", { signal, params: { query: { limit: 500 } } }))).items,
  });

/** A criterion with the newest runs, and with the runs of a validation. */
export const criterionQuery = (key: CriterionKey, validation?: string) =>
  queryOptions({
    queryKey: validationKeys.criterion(key, validation),
    queryFn: ({ signal }) =>
      unwrap(client.GET("/v1/criteria/detail", { signal, params: { query: { ...key, validation } } })),
  });

/**
 * The criterion of a validation: of its cohort, or of its hardware with any driver; null without either. It includes
 * the runs of the validation.
 */
export const judgingQuery = (key: CriterionKey, validation: string) =>
  queryOptions({
    queryKey: [...validationKeys.criterion(key, validation), "active"],
    staleTime: 60_000,
    queryFn: async ({ signal }) => {
      const hardware = key.cohort.split("; ")[0] ?? key.cohort;
      for (const cohort of new Set([key.cohort, hardware])) {
        const query = { ...key, cohort, validation };
        const asked = unwrap(client.GET("/v1/criteria/detail", { signal, params: { query } }));
        const found = await asked.catch((error: unknown) => {
          if (error instanceof ProblemError && error.problem.status === 404) return null;
          throw error;
        });
        if (found) return found;
      }
      return null;
    },
  });
