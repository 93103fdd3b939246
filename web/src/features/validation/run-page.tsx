/** One run of a sweep: the progress of every node, outliers first. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { useState } from "react";
import { client, idempotencyKey, unwrap } from "@/api/client";
import type { Sweep, SweepRun } from "@/api/types";
import { age, duration, plural } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { useNow, when } from "@/lib/time";
import { Age, Until } from "@/ui/age";
import { Button } from "@/ui/button";
import { CopyMenu, curl } from "@/ui/copy";
import { Empty, ErrorNotice } from "@/ui/notice";
import { Page } from "@/ui/page";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { Select } from "@/ui/select";
import { StatePill } from "@/ui/state-pill";
import { heldText, remeasureText, runTotal } from "./labels";
import { sweepQuery, validationKeys } from "./queries";
import { RunBar, RunCounts } from "./run-counts";
import { RunNodes } from "./run-nodes";
import { SweepDialog } from "./sweep-dialog";
import { SweepSwitch } from "./sweep-switch";

const route = getRouteApi("/shell/validation/sweeps/$id");

export function RunPage() {
  const { id } = route.useParams();
  const { run: chosen } = route.useSearch();
  const navigate = route.useNavigate();
  const [editing, setEditing] = useState(false);
  const query = useQuery({ ...sweepQuery(id), refetchInterval: usePolling(10_000, 3_000) });
  const sweep = query.data;
  const run = sweep?.runs.find((one) => one.id === chosen) ?? sweep?.runs[0];
  return (
    <Page
      title={sweep?.name ?? "Sweep"}
      crumb={
        <Link to="/validation" search={{ tab: "sweeps" }} className="hover:underline">
          Sweeps
        </Link>
      }
      mark={run && <RunMark run={run} />}
      meta={sweep && <Meta sweep={sweep} />}
      actions={
        <>
          {sweep && run && sweep.runs.length > 1 && (
            <PickRun
              runs={sweep.runs}
              run={run}
              onPick={(next) => void navigate({ search: { run: next }, replace: true })}
            />
          )}
          <CopyMenu commands={[curl(`/v1/sweeps/${id}`), ...(run ? [runCommand(run.id)] : [])]} />
          {sweep && sweep.schedule !== null && <SweepSwitch sweep={sweep} />}
          {sweep && <Button onClick={() => setEditing(true)}>Edit</Button>}
          {sweep && <SweepDialog sweep={sweep} open={editing} onOpenChange={setEditing} />}
          {sweep && <RunNow sweep={sweep} onStarted={() => void navigate({ search: {} })} />}
        </>
      }
    >
      <QueryView query={query}>
        {(data) =>
          run ? (
            <Body sweep={data} run={run} missing={chosen !== undefined && run.id !== chosen} />
          ) : (
            <Panel>
              <Empty title="No runs yet.">{neverRan(data)}</Empty>
            </Panel>
          )
        }
      </QueryView>
    </Page>
  );
}

function neverRan({ schedule, enabled }: Sweep): string {
  if (schedule === null) return "This sweep has no schedule. Run it now.";
  return enabled
    ? "Wait for its schedule, or run it now."
    : "Its schedule is off. Switch it on, or run it now.";
}

const runCommand = (run: string) => ({
  ...curl(`/v1/validations?run=${run}`),
  label: "curl nodes of the run",
});

function RunMark({ run }: { run: SweepRun }) {
  if (run.finished_at === null)
    return (
      <StatePill
        look={{ label: "Running", tone: "validating", glyph: "half", about: "Not all nodes have ended" }}
      />
    );
  return (
    <StatePill look={{ label: "Ended", tone: "unknown", glyph: "dot", about: "Every node has ended" }} />
  );
}

function Meta({ sweep }: { sweep: Sweep }) {
  const limits = sweep.max_concurrent !== null || sweep.max_per_switch !== null;
  return (
    <>
      <span>
        suite {sweep.suite}
        {sweep.benchmarks !== null && `, ${plural(sweep.benchmarks.length, "benchmark")}`}
      </span>
      <span>{sweep.nodes === null ? "all nodes" : plural(sweep.nodes.length, "node")}</span>
      {sweep.cohort !== null && <span>of cohort {sweep.cohort}</span>}
      {limits && <span>{heldText(sweep)}</span>}
      {sweep.retries > 0 && <span>{plural(sweep.retries, "further attempt")}</span>}
      {sweep.remeasure > 0 && <span>{remeasureText(sweep.remeasure)}</span>}
      {sweep.timeout_seconds !== null && <span>time-out {duration(sweep.timeout_seconds)}</span>}
      <span>
        {sweep.schedule === null ? (
          "no schedule"
        ) : (
          <code className="font-mono text-xs">{sweep.schedule}</code>
        )}
        {sweep.next_run_at !== null && (
          <>
            , next <Until at={sweep.next_run_at} />
          </>
        )}
      </span>
    </>
  );
}

interface PickProps {
  runs: SweepRun[];
  run: SweepRun;
  onPick: (run: string) => void;
}

function PickRun({ runs, run, onPick }: PickProps) {
  const now = useNow();
  return (
    <Select
      label="Run"
      value={run.id}
      onChange={onPick}
      groups={[
        { options: runs.map((one) => ({ value: one.id, label: `Run of ${when(one.started_at, now)}` })) },
      ]}
    />
  );
}

function RunNow({ sweep, onStarted }: { sweep: Sweep; onStarted: () => void }) {
  const queryClient = useQueryClient();
  const running = sweep.runs[0]?.finished_at === null;
  const start = useMutation({
    mutationFn: () =>
      unwrap(
        client.POST("/v1/sweeps/{id}:run", { params: { path: { id: sweep.id } }, headers: idempotencyKey() }),
      ),
    onSuccess: () => {
      void queryClient.invalidateQueries({ queryKey: validationKeys.sweeps });
      onStarted();
    },
  });
  return (
    <>
      <Button
        kind="primary"
        icon="play"
        busy={start.isPending}
        disabled={running}
        title={running ? "The last run has not ended" : undefined}
        onClick={() => start.mutate()}
      >
        Run sweep
      </Button>
      {start.isError && <ErrorNotice error={start.error} />}
    </>
  );
}

function Body({ sweep, run, missing }: { sweep: Sweep; run: SweepRun; missing: boolean }) {
  const total = runTotal(run);
  const done = total - run.counts.pending;
  return (
    <>
      {missing && <p className="text-ink-2 text-sm">That run is no longer stored. This is the newest run.</p>}
      <Panel
        title="Progress"
        about={
          total === 0
            ? "no node has its task yet"
            : `${done} of ${plural(total, "node")} ${done === 1 ? "has" : "have"} ended`
        }
        aside={
          <span className="text-ink-3 text-xs">
            {run.finished_at === null ? (
              <>
                started <Age at={run.started_at} />
              </>
            ) : (
              <>
                took {age(run.finished_at - run.started_at)}, ended <Age at={run.finished_at} />
              </>
            )}
          </span>
        }
      >
        <div className="flex flex-col gap-2.5 text-sm">
          <RunBar run={run} />
          <RunCounts counts={run.counts} />
        </div>
      </Panel>
      <RunNodes sweep={sweep} run={run} />
    </>
  );
}
