import { queryOptions } from "@tanstack/react-query";
import { client, unwrap } from "@/api/client";

/** They change with the service, not while it runs. */
export const policiesQuery = () =>
  queryOptions({
    queryKey: ["recovery-policies"],
    staleTime: Number.POSITIVE_INFINITY,
    queryFn: async ({ signal }) => (await unwrap(client.GET("/v1/plans:policies", { signal }))).items,
  });
