import { queryOptions } from "@tanstack/react-query";
import { client, unwrap } from "@/api/client";

export const planKeys = { one: (id: string) => ["validation-plans", id] as const };

/** A stored plan; plans never change. */
export const planQuery = (id: string) =>
  queryOptions({
    queryKey: planKeys.one(id),
    staleTime: Number.POSITIVE_INFINITY,
    queryFn: ({ signal }) =>
      unwrap(client.GET("/v1/validation-plans/{id}", { signal, params: { path: { id } } })),
  });
