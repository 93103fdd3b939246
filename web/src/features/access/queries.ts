import { infiniteQueryOptions, keepPreviousData, queryOptions } from "@tanstack/react-query";
import { client, unwrap } from "@/api/client";

export interface AuditFilter {
  actor?: string;
  action?: string;
}

export const accessKeys = {
  all: ["access"] as const,
  users: ["access", "users"] as const,
  teams: ["access", "teams"] as const,
  tokens: ["access", "tokens"] as const,
  sessions: ["access", "sessions"] as const,
  audit: (filter: AuditFilter) => ["access", "audit", filter] as const,
};

interface PageOf {
  next_cursor: string | null;
}
const paged = {
  initialPageParam: undefined as string | undefined,
  getNextPageParam: (page: PageOf) => page.next_cursor ?? undefined,
  placeholderData: keepPreviousData,
};

export const usersQuery = () =>
  infiniteQueryOptions({
    ...paged,
    queryKey: accessKeys.users,
    queryFn: ({ signal, pageParam }) =>
      unwrap(client.GET("/v1/users", { signal, params: { query: { cursor: pageParam } } })),
  });

export const teamsQuery = () =>
  queryOptions({
    queryKey: accessKeys.teams,
    queryFn: ({ signal }) => unwrap(client.GET("/v1/teams", { signal })),
  });

export const tokensQuery = () =>
  infiniteQueryOptions({
    ...paged,
    queryKey: accessKeys.tokens,
    queryFn: ({ signal, pageParam }) =>
      unwrap(
        client.GET("/v1/auth/tokens", {
          signal,
          params: { query: { cursor: pageParam, valid: true, limit: 50 } },
        }),
      ),
  });

export const sessionsQuery = () =>
  infiniteQueryOptions({
    ...paged,
    queryKey: accessKeys.sessions,
    queryFn: ({ signal, pageParam }) =>
      unwrap(
        client.GET("/v1/auth/sessions", { signal, params: { query: { cursor: pageParam, limit: 50 } } }),
      ),
  });

export const auditQuery = (filter: AuditFilter) =>
  infiniteQueryOptions({
    ...paged,
    queryKey: accessKeys.audit(filter),
    queryFn: ({ signal, pageParam }) =>
      unwrap(
        client.GET("/v1/audit-log", {
          signal,
          params: { query: { ...filter, cursor: pageParam, limit: 50 } },
        }),
      ),
  });
