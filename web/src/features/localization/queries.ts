import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { client, unwrap } from "@/api/client";

export const localizationKeys = {
  all: ["localizations"] as const,
  list: ["localizations", "list"] as const,
  one: (id: string) => ["localizations", "one", id] as const,
};

export const localizationsQuery = () =>
  infiniteQueryOptions({
    queryKey: localizationKeys.list,
    initialPageParam: undefined as string | undefined,
    queryFn: ({ signal, pageParam }) =>
      unwrap(
        client.GET("/v1/fault-localizations", {
          signal,
          params: { query: { limit: 50, cursor: pageParam } },
        }),
      ),
    getNextPageParam: (page) => page.next_cursor ?? undefined,
  });

export const localizationQuery = (id: string) =>
  queryOptions({
    queryKey: localizationKeys.one(id),
    queryFn: ({ signal }) =>
      unwrap(client.GET("/v1/fault-localizations/{id}", { signal, params: { path: { id } } })),
  });
