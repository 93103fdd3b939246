import { queryOptions } from "@tanstack/react-query";
import { client, unwrap } from "@/api/client";

export interface SilenceFilter {
  node?: string;
  incident?: string;
}

export const silenceKeys = {
  all: ["silences"] as const,
  of: (filter: SilenceFilter) => ["silences", filter] as const,
};

/** Silences that are not over, or the active ones about a node or an incident. */
export const silencesQuery = (filter: SilenceFilter = {}) =>
  queryOptions({
    queryKey: silenceKeys.of(filter),
    queryFn: async ({ signal }) =>
      (await unwrap(client.GET("/v1/silences", { signal, params: { query: { ...filter, limit: 200 } } })))
        .items,
  });
