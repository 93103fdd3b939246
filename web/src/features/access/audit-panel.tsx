/** The audit log: every act of a person, a token, or a rule. */
import { useInfiniteQuery } from "@tanstack/react-query";
import { useState } from "react";
import type { AuditEntry } from "@/api/types";
import { humanize } from "@/lib/format";
import { Age } from "@/ui/age";
import { Button } from "@/ui/button";
import { Input } from "@/ui/field";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { detailOf } from "./model";
import { auditQuery } from "./queries";

export function AuditPanel() {
  const [actor, setActor] = useState("");
  const filter = actor.trim() ? { actor: actor.trim() } : {};
  const query = useInfiniteQuery(auditQuery(filter));
  return (
    <Panel
      title="Audit log"
      about="append-only; the database refuses changes"
      aside={
        <>
          <Input
            aria-label="Actor"
            placeholder="Actor"
            value={actor}
            onChange={(event) => setActor(event.target.value)}
            className="w-40"
          />
          <a
            href="/v1/audit-log.csv"
            className="inline-flex h-8 items-center whitespace-nowrap rounded-md border border-line-strong px-3 font-medium text-sm hover:bg-hover"
          >
            Export CSV
          </a>
        </>
      }
      flush
    >
      <QueryView query={query}>
        {(data) => {
          const entries = data.pages.flatMap((page) => page.items);
          return (
            <>
              {entries.length === 0 && (
                <div className="px-4 pb-3">
                  <Empty title={actor ? `No acts of ${actor}.` : "No acts yet."} />
                </div>
              )}
              <ol>
                {entries.map((entry) => (
                  <Entry key={entry.id} entry={entry} />
                ))}
              </ol>
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

function Entry({ entry }: { entry: AuditEntry }) {
  const detail = detailOf(entry);
  return (
    <li className="grid gap-x-4 border-line border-t px-4 py-1.5 text-sm md:grid-cols-[7rem_12rem_minmax(0,1fr)]">
      <span className="text-ink-3">
        <Age at={entry.at} />
      </span>
      <span className="min-w-0 break-words">
        <b className="font-medium">{entry.actor}</b>{" "}
        <span className="text-ink-3 text-xs">
          {entry.actor_kind}
          {entry.address && ` · ${entry.address}`}
        </span>
      </span>
      <span className="min-w-0">
        <span className="block break-words">
          {humanize(entry.action)} <span className="font-mono text-ink-3 text-xs">{entry.target}</span>
        </span>
        {detail && (
          <span className="block truncate text-ink-2 text-xs" title={detail}>
            {detail}
          </span>
        )}
      </span>
    </li>
  );
}
