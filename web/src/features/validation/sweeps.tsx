import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { client, idempotencyKey, unwrap } from "@/api/client";
import type { Sweep } from "@/api/types";
import { plural } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { Age, Until } from "@/ui/age";
import { Button } from "@/ui/button";
import { Empty, ErrorNotice } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { SkeletonRows } from "@/ui/skeleton";
import { useToast } from "@/ui/toast";
import { heldText, remeasureText } from "./labels";
import { sweepsQuery, validationKeys } from "./queries";
import { RunCounts } from "./run-counts";
import { SweepDialog } from "./sweep-dialog";
import { inZone, localZone } from "./sweep-form";
import { SweepSwitch } from "./sweep-switch";

export function Sweeps() {
  const query = useQuery({ ...sweepsQuery(), refetchInterval: usePolling(10_000) });
  const [making, setMaking] = useState(false);
  return (
    <Panel
      title="Sweeps"
      about="a suite on many nodes, by schedule"
      flush
      aside={<Button onClick={() => setMaking(true)}>New sweep</Button>}
    >
      <QueryView query={query} loading={<SkeletonRows className="px-4 pb-4" />}>
        {(sweeps) =>
          sweeps.length === 0 ? (
            <div className="px-4 pb-3">
              <Empty title="No sweeps yet.">
                Create a sweep, for example a nightly quick suite on all nodes.
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
      <SweepDialog open={making} onOpenChange={setMaking} />
    </Panel>
  );
}

function SweepRow({ sweep }: { sweep: Sweep }) {
  const queryClient = useQueryClient();
  const toast = useToast();
  const navigate = useNavigate();
  const [editing, setEditing] = useState(false);
  const run = useMutation({
    mutationFn: () =>
      unwrap(
        client.POST("/v1/sweeps/{id}:run", { params: { path: { id: sweep.id } }, headers: idempotencyKey() }),
      ),
    onSuccess: () => {
      void queryClient.invalidateQueries({ queryKey: validationKeys.sweeps });
      void queryClient.invalidateQueries({ queryKey: validationKeys.all });
      toast(`${sweep.name} started`);
      void navigate({ to: "/validation/sweeps/$id", params: { id: sweep.id }, search: {} });
    },
  });
  return (
    <li className="border-line border-t px-4 py-3 text-sm">
      <div className="grid items-center gap-x-6 gap-y-2 lg:grid-cols-[minmax(0,3fr)_minmax(0,2fr)_minmax(0,3fr)_16rem]">
        <div className="min-w-0">
          <Link
            to="/validation/sweeps/$id"
            params={{ id: sweep.id }}
            search={{}}
            className="font-medium text-ink hover:underline"
          >
            {sweep.name}
          </Link>
          <p className="line-clamp-3 text-ink-3 text-xs">{scope(sweep)}</p>
        </div>
        <div className="text-ink-2">
          {sweep.enabled ? <Until at={sweep.next_run_at} /> : "off"}
          <p className="font-mono text-ink-3 text-xs">{timesText(sweep)}</p>
        </div>
        <Runs sweep={sweep} />
        <div className="flex flex-wrap items-center gap-2 lg:justify-end">
          {(sweep.schedule !== null || sweep.next_run_at !== null) && <SweepSwitch sweep={sweep} />}
          <Button aria-label={`Edit ${sweep.name}`} onClick={() => setEditing(true)}>
            Edit
          </Button>
          <Button icon="play" busy={run.isPending} onClick={() => run.mutate()}>
            Run sweep
          </Button>
        </div>
      </div>
      <SweepDialog sweep={sweep} open={editing} onOpenChange={setEditing} />
      {run.isError && (
        <div className="mt-2">
          <ErrorNotice error={run.error} />
        </div>
      )}
    </li>
  );
}

function Runs({ sweep }: { sweep: Sweep }) {
  const last = sweep.runs[0];
  if (!last) return <span className="text-ink-3">no runs</span>;
  return (
    <div className="min-w-0">
      <RunCounts counts={last.counts} />
      <p className="text-ink-3 text-xs">
        <Link
          to="/validation/sweeps/$id"
          params={{ id: sweep.id }}
          search={{ run: last.id }}
          className="text-accent hover:underline"
        >
          {last.finished_at === null ? "running since " : "ran "}
          <Age at={last.finished_at ?? last.started_at} suffix={last.finished_at === null ? "" : undefined} />
        </Link>
        {sweep.runs.length > 1 && `, ${plural(sweep.runs.length, "run")} stored`}
      </p>
    </div>
  );
}

/** When a sweep runs. */
function timesText({ schedule, timezone, run_at }: Sweep): string {
  if (run_at !== null) return `once, ${inZone(run_at, localZone())} (${localZone()})`;
  if (schedule === null) return "no schedule";
  return schedule.startsWith("every") ? schedule : `${schedule} (${timezone})`;
}

/** The suite, nodes, and limits of a sweep as text. */
function scope(sweep: Sweep): string {
  const { nodes, racks, cohorts, states, benchmarks, suite } = sweep;
  return [
    benchmarks === null ? `suite ${suite}` : `${plural(benchmarks.length, "benchmark")} of suite ${suite}`,
    `on ${nodes === null ? "all nodes" : plural(nodes.length, "node")}`,
    racks.length > 0 && `rack ${racks.join(" or ")}`,
    cohorts.length > 0 && `cohort ${cohorts.join(" or ")}`,
    states.length > 0 && `state ${states.join(" or ")}`,
    (sweep.max_concurrent !== null || sweep.max_per_switch !== null) && heldText(sweep),
    sweep.remeasure > 0 && remeasureText(sweep.remeasure),
  ]
    .filter(Boolean)
    .join(", ");
}
