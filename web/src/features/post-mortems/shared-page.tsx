/** The page of a share link: the post-mortem of one incident, without signing in. */
import { useQuery } from "@tanstack/react-query";
import { useLocation } from "@tanstack/react-router";
import { useEffect } from "react";
import { client, unwrap } from "@/api/client";
import { Logo } from "@/app/nav";
import { incident as looks, severity, statusStyleOf } from "@/lib/status-styles";
import { Button } from "@/ui/button";
import { QueryView } from "@/ui/query-view";
import { StatePill } from "@/ui/state-pill";
import { PostMortemView } from "./post-mortem-view";

export function SharedPage() {
  // The token is in the fragment, which no server or log receives.
  const token = useLocation({ select: (location) => location.hash });
  const query = useQuery({
    queryKey: ["shared-incident", token],
    queryFn: ({ signal }) => unwrap(client.POST("/v1/shared-incidents", { signal, body: { token } })),
    staleTime: Number.POSITIVE_INFINITY, // a document: it changes only when it is loaded again
  });
  const title = query.data?.incident.title ?? "Post-mortem";
  useEffect(() => {
    document.title = `${title} · Mainstay`;
  }, [title]);
  return (
    <main className="mx-auto flex w-full max-w-6xl flex-col gap-4 px-4 pt-6 pb-16 sm:px-6 print:max-w-none print:p-0">
      <header className="flex flex-wrap items-start gap-x-6 gap-y-3">
        <div className="min-w-0 flex-1">
          <p className="mb-1 flex items-center gap-2 text-ink-3 text-sm">
            <Logo size={20} /> Mainstay post-mortem
          </p>
          <h1 className="break-words font-semibold text-2xl text-ink tracking-[-0.02em]">{title}</h1>
          {query.data && (
            <div className="mt-2 flex flex-wrap gap-3">
              <StatePill look={statusStyleOf(severity, query.data.incident.severity)} />
              <StatePill look={statusStyleOf(looks, query.data.incident.state)} />
            </div>
          )}
        </div>
        {query.data && (
          <Button className="print:hidden" onClick={() => window.print()}>
            Print
          </Button>
        )}
      </header>
      <QueryView query={query}>{(found) => <PostMortemView found={found} />}</QueryView>
    </main>
  );
}
