import { infiniteQueryOptions, keepPreviousData, queryOptions } from "@tanstack/react-query";
import { client, unwrap } from "@/api/client";
import type { HealthState, NodeSort } from "@/api/types";

export interface NodeFilter {
  state?: HealthState;
  rack?: string;
  cohort?: string;
  job?: string;
  q?: string;
  sort?: NodeSort;
  /** Whether to count the nodes of each state, rack, cohort and job. */
  facets?: boolean;
}

export const nodeKeys = {
  all: ["nodes"] as const,
  list: (filter: NodeFilter) => ["nodes", "list", filter] as const,
  one: (name: string) => ["nodes", "one", name] as const,
  transitions: (name: string) => ["nodes", "transitions", name] as const,
  events: (name: string) => ["events", "node", name] as const,
  telemetry: (query: TelemetryQuery) => ["telemetry", query] as const,
};

export const nodesQuery = (filter: NodeFilter = {}) =>
  infiniteQueryOptions({
    queryKey: nodeKeys.list(filter),
    initialPageParam: undefined as string | undefined,
    queryFn: ({ signal, pageParam }) =>
      unwrap(
        client.GET("/v1/nodes", { signal, params: { query: { ...filter, limit: 100, cursor: pageParam } } }),
      ),
    getNextPageParam: (page) => page.next_cursor ?? undefined,
    placeholderData: keepPreviousData,
  });

export const nodeQuery = (name: string) =>
  queryOptions({
    queryKey: nodeKeys.one(name),
    queryFn: ({ signal }) => unwrap(client.GET("/v1/nodes/{name}", { signal, params: { path: { name } } })),
  });

export const transitionsQuery = (name: string) =>
  infiniteQueryOptions({
    queryKey: nodeKeys.transitions(name),
    initialPageParam: undefined as string | undefined,
    queryFn: ({ signal, pageParam }) =>
      unwrap(
        client.GET("/v1/nodes/{name}/transitions", {
          signal,
          params: { path: { name }, query: { limit: 50, cursor: pageParam } },
        }),
      ),
    getNextPageParam: (page) => page.next_cursor ?? undefined,
  });

export const nodeEventsQuery = (node: string) =>
  queryOptions({
    queryKey: nodeKeys.events(node),
    queryFn: ({ signal }) =>
      unwrap(client.GET("/v1/events", { signal, params: { query: { node, limit: 50 } } })),
  });

export interface TelemetryQuery {
  node: string;
  signals: string[];
  /** A fixed window, or a number of seconds up to now. */
  from?: number;
  to?: number;
  span: number;
  points: number;
}

export const telemetryQuery = (query: TelemetryQuery) =>
  queryOptions({
    queryKey: nodeKeys.telemetry(query),
    enabled: query.signals.length > 0,
    placeholderData: keepPreviousData,
    queryFn: ({ signal }) => {
      const window =
        query.from !== undefined && query.to !== undefined
          ? { from: query.from, to: query.to }
          : { from: Date.now() / 1000 - query.span };
      const { node, signals, points } = query;
      return unwrap(
        client.GET("/v1/telemetry/query", {
          signal,
          params: { query: { node, signal: signals, points, ...window } },
        }),
      );
    },
  });
