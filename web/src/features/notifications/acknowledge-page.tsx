/** The page of the link in a message: it acknowledges the incidents at once, without signing in. */
import { useMutation } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useEffect, useRef } from "react";
import { client, unwrap } from "@/api/client";
import { Logo } from "@/app/nav";
import { plural } from "@/lib/format";
import { ErrorNotice } from "@/ui/notice";

export function AcknowledgePage() {
  const tried = useRef(false);
  // The token is in the fragment, which no server or log receives. Scanners of mail open links, but run no scripts.
  const act = useMutation({
    mutationFn: () =>
      unwrap(
        client.POST("/v1/notifications:acknowledge", { body: { token: window.location.hash.slice(1) } }),
      ),
  });
  const acknowledge = act.mutate;
  useEffect(() => {
    document.title = "Acknowledge · Mainstay";
    if (tried.current) return;
    tried.current = true;
    acknowledge();
  }, [acknowledge]);

  return (
    <main className="grid min-h-screen place-items-center px-4">
      <div className="w-full max-w-lg">
        <div className="mb-6 flex items-center gap-3">
          <Logo size={36} />
          <h1 className="font-semibold text-2xl tracking-[-0.02em]">Acknowledge</h1>
        </div>
        <div aria-live="polite" className="flex flex-col gap-3">
          {act.isPending && <p>One moment…</p>}
          {act.isError && <ErrorNotice error={act.error} onRetry={() => act.mutate()} />}
          {act.data &&
            (act.data.incidents.length === 0 ? (
              <p>These incidents are over: there is nothing to acknowledge.</p>
            ) : (
              <>
                <p>{plural(act.data.incidents.length, "incident")} acknowledged:</p>
                <ul className="flex flex-col gap-2">
                  {act.data.incidents.map((incident) => (
                    <li key={incident.id}>
                      <Link
                        to="/incidents/$id"
                        params={{ id: incident.id }}
                        className="font-medium text-accent hover:underline"
                      >
                        {incident.title}
                      </Link>
                      <span className="block text-ink-3 text-xs">by {incident.acknowledged_by}</span>
                    </li>
                  ))}
                </ul>
              </>
            ))}
        </div>
      </div>
    </main>
  );
}
