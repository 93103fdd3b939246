import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { client, unwrap } from "@/api/client";

export const judgedKeys = {
  signals: (id: string, names: readonly string[], start?: number, stop?: number) =>
    ["signals-of-job", id, names, start, stop] as const,
  progress: (id: string) => ["progress", id] as const,
  pairs: (id: string) => ["pairs", id] as const,
  judgement: (id: string) => ["judgement", id] as const,
  findings: (id: string) => ["findings", "job", id] as const,
  held: (id: string) => ["findings", "held", id] as const,
};

/** Cells that one answer may hold: what a browser reads and draws without a pause. */
const MOST_CELLS = 200_000;

/** Steps to ask for: fewer where there are many ranks, and never so few that a line is no line. */
export const pointsFor = (ranks: number) =>
  Math.max(60, Math.min(400, Math.floor(MOST_CELLS / Math.max(1, ranks))));

export const signalsQuery = (
  id: string,
  ranks: number,
  names: readonly string[],
  start?: number,
  stop?: number,
) =>
  queryOptions({
    queryKey: judgedKeys.signals(id, names, start, stop),
    placeholderData: keepPreviousData,
    queryFn: ({ signal }) =>
      unwrap(
        client.GET("/v1/jobs/{id}/signals", {
          signal,
          params: { path: { id }, query: { names: names.join(","), points: pointsFor(ranks), start, stop } },
        }),
      ),
  });

/** Ranks to list; of a larger job the service leaves out those that lag least. */
const MOST_RANKS = 4096;

export const progressQuery = (id: string) =>
  queryOptions({
    queryKey: judgedKeys.progress(id),
    queryFn: ({ signal }) =>
      unwrap(
        client.GET("/v1/jobs/{id}/progress", {
          signal,
          params: { path: { id }, query: { limit: MOST_RANKS } },
        }),
      ),
  });

export const PAIR_STEPS = 20;

export const pairsQuery = (id: string) =>
  queryOptions({
    queryKey: judgedKeys.pairs(id),
    queryFn: ({ signal }) =>
      unwrap(
        client.GET("/v1/jobs/{id}/pairs", { signal, params: { path: { id }, query: { steps: PAIR_STEPS } } }),
      ),
  });

export const judgementQuery = (id: string) =>
  queryOptions({
    queryKey: judgedKeys.judgement(id),
    queryFn: ({ signal }) =>
      unwrap(client.GET("/v1/jobs/{id}/judgement", { signal, params: { path: { id } } })),
  });

/** What holds of the job now, advice among it. */
export const heldFindingsQuery = (id: string) =>
  queryOptions({
    queryKey: judgedKeys.held(id),
    queryFn: async ({ signal }) =>
      (
        await unwrap(
          client.GET("/v1/findings", { signal, params: { query: { job: id, active: true, limit: 500 } } }),
        )
      ).items,
  });

/** The job's newest findings, those included that no longer hold: marks on its charts. */
export const findingsQuery = (id: string) =>
  queryOptions({
    queryKey: judgedKeys.findings(id),
    queryFn: async ({ signal }) =>
      (await unwrap(client.GET("/v1/findings", { signal, params: { query: { job: id, limit: 200 } } })))
        .items,
  });
