/** Requests that move many nodes, and the drain that the page follows. */
import { type QueryClient, queryOptions, skipToken } from "@tanstack/react-query";
import { client, type idempotencyKey, unwrap } from "@/api/client";
import type { Node, NodesMove } from "@/api/types";

export type BulkAction = "drain" | "undrain" | "validate";
export type DrainMode = "wait" | "migrate";

interface Move {
  action: BulkAction;
  nodes: string[];
  reason: string;
  mode?: DrainMode;
  preview?: boolean;
  confirm_count?: number | null;
}

/** Send a move of many nodes, or ask what it would do. */
export function moveNodes(
  { action, mode = "wait", ...move }: Move,
  headers?: ReturnType<typeof idempotencyKey>,
): Promise<NodesMove> {
  const criteria = { racks: [], cohorts: [], states: [] };
  const body = { preview: false, confirm_count: null, ...criteria, ...move };
  if (action === "undrain") return unwrap(client.POST("/v1/nodes:undrain", { body, headers }));
  if (action === "validate")
    return unwrap(client.POST("/v1/nodes:validate", { body: { ...body, suite: null }, headers }));
  return unwrap(
    client.POST("/v1/nodes:drain", {
      body: { ...body, mode, deadline_seconds: null, external: false },
      headers,
    }),
  );
}

export const previewQuery = (action: BulkAction, nodes: string[]) =>
  queryOptions({
    queryKey: ["bulk-preview", action, nodes],
    gcTime: 0,
    queryFn: () => moveNodes({ action, nodes, reason: "", preview: true }),
  });

/** A drain of many nodes that the page follows until it is dismissed. */
export interface FollowedDrain {
  nodes: string[];
  reason: string;
}

/** Kept across pages and not in the URL: it can name a thousand nodes. */
export const followedDrainQuery = () =>
  queryOptions<FollowedDrain | null>({
    queryKey: ["followed-drain"],
    queryFn: skipToken,
    initialData: null,
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: Number.POSITIVE_INFINITY,
  });

/** Follow a drain, or none. */
export function followDrain(queryClient: QueryClient, drain: FollowedDrain | null): void {
  queryClient.setQueryData<FollowedDrain | null>(["followed-drain"], drain);
}

/** All nodes that are draining. */
export const drainingQuery = () =>
  queryOptions({
    queryKey: ["nodes", "draining"],
    queryFn: async ({ signal }) => {
      const found: Node[] = [];
      let cursor: string | undefined;
      do {
        const query = { state: "draining" as const, limit: 500, cursor };
        const page = await unwrap(client.GET("/v1/nodes", { signal, params: { query } }));
        found.push(...page.items);
        cursor = page.next_cursor ?? undefined;
      } while (cursor);
      return found;
    },
  });
