import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { client, unwrap } from "@/api/client";

export const localisationKeys = {
  all: ["localisations"] as const,
  list: ["localisations", "list"] as const,
  one: (id: string) => ["localisations", "one", id] as const,
};

export const localisationsQuery = () =>
  infiniteQueryOptions({
    queryKey: localisationKeys.list,
    initialPageParam: undefined as string | undefined,
    queryFn: ({ signal, pageParam }) =>
      unwrap(
        client.GET("/v1/localisations", { signal, params: { query: { limit: 50, cursor: pageParam } } }),
      ),
    getNextPageParam: (page) => page.next_cursor ?? undefined,
  });

export const localisationQuery = (id: string) =>
  queryOptions({
    queryKey: localisationKeys.one(id),
    queryFn: ({ signal }) =>
      unwrap(client.GET("/v1/localisations/{id}", { signal, params: { path: { id } } })),
  });
