import { queryOptions } from "@tanstack/react-query";
import { client, unwrap } from "@/api/client";

/** The policies change only with the version of the service. */
export const policiesQuery = () =>
  queryOptions({
    queryKey: ["recovery-policies"],
    staleTime: Number.POSITIVE_INFINITY,
    queryFn: async ({ signal }) => (await unwrap(client.GET("/v1/simulation-policies", { signal }))).items,
  });
