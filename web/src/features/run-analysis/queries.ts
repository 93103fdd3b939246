import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { client, unwrap } from "@/api/client";

export const runAnalysisKeys = {
  signals: (id: string, names: readonly string[], start?: number, stop?: number) =>
    ["signals-of-job", id, names, start, stop] as const,
  progress: (id: string) => ["progress", id] as const,
  pairs: (id: string) => ["pairs", id] as const,
  detectors: (id: string) => ["detectors", id] as const,
  findings: (id: string) => ["findings", "job", id] as const,
  held: (id: string) => ["findings", "held", id] as const,
};

/** The most cells of one response that a browser draws without a pause. */
const MOST_CELLS = 200_000;

/** Return the number of steps to request: fewer for many ranks, with a minimum for a readable line. */
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
    queryKey: runAnalysisKeys.signals(id, names, start, stop),
    placeholderData: keepPreviousData,
    queryFn: ({ signal }) =>
      unwrap(
        client.GET("/v1/jobs/{id}/signals", {
          signal,
          params: { path: { id }, query: { names: names.join(","), points: pointsFor(ranks), start, stop } },
        }),
      ),
  });

/** The most ranks to list; the service omits those with the least lag. */
const MOST_RANKS = 4096;

export const progressQuery = (id: string) =>
  queryOptions({
    queryKey: runAnalysisKeys.progress(id),
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
    queryKey: runAnalysisKeys.pairs(id),
    queryFn: ({ signal }) =>
      unwrap(
        client.GET("/v1/jobs/{id}/transfers", {
          signal,
          params: { path: { id }, query: { steps: PAIR_STEPS } },
        }),
      ),
  });

export const detectorsQuery = (id: string) =>
  queryOptions({
    queryKey: runAnalysisKeys.detectors(id),
    queryFn: ({ signal }) =>
      unwrap(client.GET("/v1/jobs/{id}/detectors", { signal, params: { path: { id } } })),
  });

/** The active findings of the job, including recommendations. */
export const heldFindingsQuery = (id: string) =>
  queryOptions({
    queryKey: runAnalysisKeys.held(id),
    queryFn: async ({ signal }) =>
      (
        await unwrap(
          client.GET("/v1/findings", { signal, params: { query: { job: id, active: true, limit: 500 } } }),
        )
      ).items,
  });

/** The job's newest findings, including cleared ones, for marks on its charts. */
export const findingsQuery = (id: string) =>
  queryOptions({
    queryKey: runAnalysisKeys.findings(id),
    queryFn: async ({ signal }) =>
      (await unwrap(client.GET("/v1/findings", { signal, params: { query: { job: id, limit: 200 } } })))
        .items,
  });
