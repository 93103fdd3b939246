/** Where users are signed in. */
import { useInfiniteQuery, useMutation, useQueryClient } from "@tanstack/react-query";
import { client, unwrap } from "@/api/client";
import { problemOf } from "@/api/problem";
import type { UserSession } from "@/api/types";
import { Age } from "@/ui/age";
import { Button } from "@/ui/button";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { useToast } from "@/ui/toast";
import { accessKeys, sessionsQuery } from "./queries";

export function SessionsPanel() {
  const query = useInfiniteQuery(sessionsQuery());
  return (
    <Panel title="Sessions" about="browsers that are signed in" flush>
      <QueryView query={query}>
        {(data) => {
          const sessions = data.pages.flatMap((page) => page.items);
          return (
            <>
              {sessions.length === 0 && (
                <div className="px-4 pb-3">
                  <Empty title="No user is signed in." />
                </div>
              )}
              <ul>
                {sessions.map((session) => (
                  <Row key={session.id} session={session} />
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
    </Panel>
  );
}

function Row({ session }: { session: UserSession }) {
  const queryClient = useQueryClient();
  const toast = useToast();
  const end = useMutation({
    mutationFn: () =>
      unwrap(client.DELETE("/v1/auth/sessions/{id}", { params: { path: { id: session.id } } })),
    onSuccess: () => toast("Signed out"),
    onError: (error) => toast(problemOf(error).detail ?? "The session was not ended"),
    onSettled: () => void queryClient.invalidateQueries({ queryKey: accessKeys.all }),
  });
  return (
    <li className="flex flex-wrap items-center gap-x-4 gap-y-1 border-line border-t px-4 py-2 text-sm">
      <span className="min-w-0 flex-1">
        <span className="block break-words">
          <b className="font-medium">{session.user}</b>
          {session.is_current && <span className="text-ink-3"> this browser</span>}
        </span>
        <span className="block text-ink-3 text-xs">
          {session.sign_in === "openid" ? "Provider" : "Password"} · from{" "}
          {session.address ?? "an unknown address"}
          {" · signed in "}
          <Age at={session.created_at} />
          {session.last_used_at !== null && (
            <>
              {" · used "}
              <Age at={session.last_used_at} />
            </>
          )}
        </span>
      </span>
      <Button busy={end.isPending} onClick={() => end.mutate()} aria-label={`Sign ${session.user} out`}>
        Sign out
      </Button>
    </li>
  );
}
