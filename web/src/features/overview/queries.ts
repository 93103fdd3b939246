import { queryOptions } from "@tanstack/react-query";
import { client, unwrap } from "@/api/client";
import { learnServerTime } from "@/lib/time";

export const overviewKeys = { all: ["overview"] as const };

export const overviewQuery = () =>
  queryOptions({
    queryKey: overviewKeys.all,
    queryFn: async ({ signal }) => {
      const overview = await unwrap(client.GET("/v1/overview", { signal }));
      learnServerTime(overview.now);
      return overview;
    },
  });
