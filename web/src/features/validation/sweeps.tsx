import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { client, idempotencyKey, unwrap } from "@/api/client";
import type { Sweep, SweepRun } from "@/api/types";
import { plural } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { lookOf, verdict } from "@/lib/states";
import { Age, Until } from "@/ui/age";
import { Button } from "@/ui/button";
import { Glyph } from "@/ui/glyph";
import { Empty, ErrorNotice } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { SkeletonRows } from "@/ui/skeleton";
import { useToast } from "@/ui/toast";
import { NewSweep } from "./new-sweep";
import { sweepsQuery, validationKeys } from "./queries";

export function Sweeps() {
  const query = useQuery({ ...sweepsQuery(), refetchInterval: usePolling(10_000) });
  const [making, setMaking] = useState(false);
  return (
    <Panel
      title="Sweeps"
      about="a suite over many nodes, by schedule"
      flush
      aside={<Button onClick={() => setMaking(true)}>New sweep</Button>}
    >
      <QueryView query={query} loading={<SkeletonRows className="px-4 pb-4" />}>
        {(sweeps) =>
          sweeps.length === 0 ? (
            <div className="px-4 pb-3">
              <Empty title="No sweep is scheduled.">
                A nightly quick suite over all nodes is a good first one: nodes decay silently.
              </Empty>
            </div>
          ) : (
            <ul>
              {sweeps.map((sweep) => (
                <SweepRow key={sweep.id} sweep={sweep} />
              ))}
            </ul>
          )
        }
      </QueryView>
      <NewSweep open={making} onOpenChange={setMaking} />
    </Panel>
  );
}

function SweepRow({ sweep }: { sweep: Sweep }) {
  const queryClient = useQueryClient();
  const say = useToast();
  const run = useMutation({
    mutationFn: () =>
      unwrap(
        client.POST("/v1/sweeps/{id}:run", { params: { path: { id: sweep.id } }, headers: idempotencyKey() }),
      ),
    onSuccess: () => {
      void queryClient.invalidateQueries({ queryKey: validationKeys.sweeps });
      void queryClient.invalidateQueries({ queryKey: validationKeys.all });
      say(`${sweep.name} started`);
    },
  });
  return (
    <li className="border-line border-t px-4 py-3 text-sm">
      <div className="grid items-center gap-x-6 gap-y-2 lg:grid-cols-[minmax(0,2fr)_minmax(0,2fr)_minmax(0,3fr)_auto]">
        <div className="min-w-0">
          <Link
            to="/validation"
            search={{ sweep: sweep.id, tab: "results" }}
            className="font-medium text-ink hover:underline"
          >
            {sweep.name}
          </Link>
          <p className="text-ink-3 text-xs">
            suite {sweep.suite} on {sweep.nodes === null ? "all nodes" : plural(sweep.nodes.length, "node")}
          </p>
        </div>
        <div className="text-ink-2">
          {sweep.enabled ? <Until at={sweep.next_run_at} /> : "paused"}
          <p className="font-mono text-ink-3 text-xs">{sweep.schedule ?? "by hand only"}</p>
        </div>
        <Runs runs={sweep.runs} />
        <Button icon="play" busy={run.isPending} onClick={() => run.mutate()}>
          Run now
        </Button>
      </div>
      {run.isError && (
        <div className="mt-2">
          <ErrorNotice error={run.error} />
        </div>
      )}
    </li>
  );
}

const kinds = ["fail", "warn", "unknown", "pass"] as const;

function Runs({ runs }: { runs: SweepRun[] }) {
  const last = runs[0];
  if (!last) return <span className="text-ink-3">never ran</span>;
  const pending = last.counts.pending;
  return (
    <div>
      <p className="num flex flex-wrap items-center gap-x-4 gap-y-1">
        {kinds.map((kind) => {
          const look = lookOf(verdict, kind);
          const count = last.counts[kind];
          if (count === 0) return null;
          return (
            <span key={kind} className="inline-flex items-center gap-1.5">
              <Glyph name={look.glyph} tone={look.tone} size={11} />
              {count} {look.label.toLowerCase()}
            </span>
          );
        })}
        {pending > 0 && (
          <span className="inline-flex items-center gap-1.5 text-ink-2">
            <Glyph name="half" tone="validating" size={11} />
            {pending} pending
          </span>
        )}
      </p>
      <p className="text-ink-3 text-xs">
        {last.finished_at === null ? "running since " : "ran "}
        <Age at={last.finished_at ?? last.started_at} />, {plural(runs.length, "run")} on record
      </p>
    </div>
  );
}
