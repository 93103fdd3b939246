import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { client, unwrap } from "@/api/client";

export interface ReportRequest {
  days: number;
  restartMinutes: number;
  checkpointMinutes: number;
}

/** The report of the last days, up to the minute: a finer end would read the same again and again. */
export const reportQuery = ({ days, restartMinutes, checkpointMinutes }: ReportRequest) =>
  queryOptions({
    queryKey: ["reports", "reliability", days, restartMinutes, checkpointMinutes],
    queryFn: ({ signal }) => {
      const until = Math.floor(Date.now() / 60_000) * 60;
      const query = {
        since: until - days * 86_400,
        until,
        restart_minutes: restartMinutes,
        checkpoint_minutes: checkpointMinutes,
      };
      return unwrap(client.GET("/v1/reports/reliability", { signal, params: { query } }));
    },
    placeholderData: keepPreviousData,
  });
