import { queryOptions } from "@tanstack/react-query";
import { client, unwrap } from "@/api/client";

export const meQuery = () =>
  queryOptions({
    queryKey: ["me"] as const,
    staleTime: 300_000,
    queryFn: ({ signal }) => unwrap(client.GET("/v1/auth/me", { signal })),
  });

export const signIn = (token: string) => unwrap(client.POST("/v1/auth/session", { body: { token } }));
export const signOut = () => unwrap(client.DELETE("/v1/auth/session"));
