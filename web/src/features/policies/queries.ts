import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { client, unwrap } from "@/api/client";

export const policyKeys = {
  all: ["policies"] as const,
  xid: ["policies", "xid"] as const,
  detectors: ["policies", "detectors"] as const,
  versions: ["policies", "xid", "versions"] as const,
  shadow: ["policies", "xid", "shadow"] as const,
};

export const policyQuery = () =>
  queryOptions({
    queryKey: policyKeys.xid,
    queryFn: ({ signal }) => unwrap(client.GET("/v1/policies/xid", { signal })),
  });

export const detectorsQuery = () =>
  queryOptions({
    queryKey: policyKeys.detectors,
    queryFn: ({ signal }) => unwrap(client.GET("/v1/detector-policies", { signal })),
    staleTime: 10_000,
  });

/** Those whose policy is not the default: pages with findings need no more. */
export const changedDetectorsQuery = () =>
  queryOptions({
    queryKey: [...policyKeys.detectors, "changed"],
    queryFn: ({ signal }) =>
      unwrap(client.GET("/v1/detector-policies", { signal, params: { query: { changed: true } } })),
    staleTime: 10_000,
  });

/** The newest active findings of a detector. */
export const detectorFindingsQuery = (detector: string) =>
  queryOptions({
    queryKey: [...policyKeys.detectors, detector],
    queryFn: ({ signal }) =>
      unwrap(client.GET("/v1/findings", { signal, params: { query: { detector, active: true, limit: 5 } } })),
  });

export const policyVersionsQuery = () =>
  infiniteQueryOptions({
    queryKey: policyKeys.versions,
    initialPageParam: undefined as string | undefined,
    queryFn: ({ signal, pageParam }) =>
      unwrap(
        client.GET("/v1/policies/xid/versions", {
          signal,
          params: { query: { limit: 50, cursor: pageParam } },
        }),
      ),
    getNextPageParam: (page) => page.next_cursor ?? undefined,
  });

export const policyShadowQuery = () =>
  infiniteQueryOptions({
    queryKey: policyKeys.shadow,
    initialPageParam: undefined as string | undefined,
    queryFn: ({ signal, pageParam }) =>
      unwrap(
        client.GET("/v1/policies/xid/shadow", {
          signal,
          params: { query: { limit: 100, cursor: pageParam } },
        }),
      ),
    getNextPageParam: (page) => page.next_cursor ?? undefined,
  });
