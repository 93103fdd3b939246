/** One run of a sweep while it goes on and after: which node stands where, outliers first. */
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
import { sweepQuery, validationKeys } from "./queries";
import { RunBar, RunCounts } from "./run-counts";
import { RunNodes } from "./run-nodes";
import { SweepDialog } from "./sweep-dialog";
import { SweepSwitch } from "./sweep-switch";
import { againText, heldText, runTotal } from "./words";

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
              <Empty title="This sweep never ran.">{neverRan(data)}</Empty>
            </Panel>
          )
        }
      </QueryView>
    </Page>
  );
}

function neverRan({ schedule, enabled }: Sweep): string {
  if (schedule === null) return "It has no schedule: start it by hand.";
  return enabled
    ? "Its schedule starts it, or you do."
    : "It is switched off: start it by hand, or switch it on.";
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
  const limits = sweep.at_once !== null || sweep.per_switch !== null;
  return (
    <>
      <span>
        suite {sweep.suite}
        {sweep.benchmarks !== null && `, ${plural(sweep.benchmarks.length, "benchmark")} of it`}
      </span>
      <span>{sweep.nodes === null ? "all nodes" : plural(sweep.nodes.length, "node")}</span>
      {sweep.cohort !== null && <span>of cohort {sweep.cohort}</span>}
      {limits && <span>{heldText(sweep)}</span>}
      {sweep.retries > 0 && <span>{plural(sweep.retries, "further attempt")}</span>}
      {sweep.again > 0 && <span>{againText(sweep.again)}</span>}
      {sweep.timeout_seconds !== null && <span>time-out {duration(sweep.timeout_seconds)}</span>}
      <span>
        {sweep.schedule === null ? (
          "by hand only"
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
        Run now
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
      {missing && (
        <p className="text-ink-2 text-sm">That run is not on record any more; this is the newest.</p>
      )}
      <Panel
        title="Progress"
        about={
          total === 0
            ? "no node has its order yet"
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
