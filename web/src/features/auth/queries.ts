import { queryOptions } from "@tanstack/react-query";
import { client, unwrap } from "@/api/client";
import type { Me } from "@/api/types";

export const meQuery = () =>
  queryOptions({
    queryKey: ["me"] as const,
    staleTime: 300_000,
    queryFn: ({ signal }) => unwrap(client.GET("/v1/auth/me", { signal })),
  });

/** Whether someone may read more than the jobs of their own teams. Until it is known, yes. */
export const seesFleet = (me: Me | undefined): boolean => !me || me.scopes.length > 0;

export const signInOptionsQuery = () =>
  queryOptions({
    queryKey: ["sign-in-options"] as const,
    queryFn: ({ signal }) => unwrap(client.GET("/v1/auth/sign-in-options", { signal })),
  });

export const signInAs = (name: string, password: string) =>
  unwrap(client.POST("/v1/auth/session", { body: { name, password } }));
export const signIn = (token: string) => unwrap(client.POST("/v1/auth/session", { body: { token } }));
export const signOut = () => unwrap(client.DELETE("/v1/auth/session"));
