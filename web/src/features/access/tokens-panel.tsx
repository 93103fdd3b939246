/** Access tokens: create, see when they were last used, revoke. A secret is shown once. */
import { useInfiniteQuery, useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { client, unwrap } from "@/api/client";
import { problemOf } from "@/api/problem";
import type { AccessToken, Me } from "@/api/types";
import { humanize } from "@/lib/format";
import { Age, Clock } from "@/ui/age";
import { Button } from "@/ui/button";
import { FormDialog } from "@/ui/form-dialog";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { useToast } from "@/ui/toast";
import { boundTo } from "./model";
import { accessKeys, tokensQuery } from "./queries";
import { TokenDialog } from "./token-dialog";

export function TokensPanel({ me }: { me: Me }) {
  const query = useInfiniteQuery(tokensQuery());
  const [creating, setCreating] = useState(false);
  const admin = me.scopes.includes("admin");
  const aside = (admin || me.user) && <Button onClick={() => setCreating(true)}>New token</Button>;
  return (
    <Panel title="Tokens" about="for programs and commands" aside={aside} flush>
      <QueryView query={query}>
        {(data) => {
          const tokens = data.pages.flatMap((page) => page.items);
          return (
            <>
              {tokens.length === 0 && (
                <div className="px-4 pb-3">
                  <Empty title="No tokens." />
                </div>
              )}
              <ul>
                {tokens.map((token) => (
                  <Row key={token.id} token={token} />
                ))}
              </ul>
              {query.hasNextPage && (
                <div className="border-line border-t px-4 py-2">
                  <Button busy={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
                    Show more
                  </Button>
                </div>
              )}
            </>
          );
        }}
      </QueryView>
      {creating && <TokenDialog me={me} onClose={() => setCreating(false)} />}
    </Panel>
  );
}

function Row({ token }: { token: AccessToken }) {
  const [revoking, setRevoking] = useState(false);
  const queryClient = useQueryClient();
  const toast = useToast();
  const revoke = useMutation({
    mutationFn: () =>
      unwrap(client.DELETE("/v1/auth/tokens/{token_id}", { params: { path: { token_id: token.id } } })),
    onSuccess: () => toast(`${token.name} is revoked`),
    onError: (error) => toast(problemOf(error).detail ?? "The token was not revoked"),
    onSettled: () => void queryClient.invalidateQueries({ queryKey: accessKeys.all }),
  });
  const bound = boundTo(token);
  return (
    <li className="flex flex-wrap items-center gap-x-4 gap-y-1 border-line border-t px-4 py-2 text-sm">
      <span className="min-w-0 flex-1">
        <span className="block break-words">
          <b className="font-medium">{token.name}</b>{" "}
          <span className="text-ink-3">
            {humanize(token.kind)}: {token.scopes.join(", ")}
          </span>
        </span>
        {bound && <span className="block break-words text-ink-2 text-xs">{bound}</span>}
        <span className="block text-ink-3 text-xs">
          <span className="font-mono">{token.prefix}…</span>
          {" · created "}
          <Age at={token.created_at} />
          {token.last_used_at !== null && (
            <>
              {" · used "}
              <Age at={token.last_used_at} />
            </>
          )}
          {token.expires_at === null ? (
            " · never expires"
          ) : (
            <>
              {" · expires "}
              <Clock at={token.expires_at} />
            </>
          )}
        </span>
      </span>
      <Button onClick={() => setRevoking(true)} aria-label={`Revoke ${token.name}`}>
        Revoke
      </Button>
      {revoking && (
        <FormDialog
          title={`Revoke ${token.name}`}
          about="Programs that use the token are refused at once. This cannot be undone."
          verb="Revoke token"
          danger
          run={() => revoke.mutateAsync()}
          onClose={() => setRevoking(false)}
          onDone={() => setRevoking(false)}
        />
      )}
    </li>
  );
}
