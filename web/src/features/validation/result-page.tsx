/** One validation: every metric with its criterion, and the reason for each verdict. */
import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import type { Validation } from "@/api/types";
import { duration, humanize, plural, shortId } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { statusStyleOf, verdict } from "@/lib/status-styles";
import { Age } from "@/ui/age";
import { CopyMenu, CopyText, curl } from "@/ui/copy";
import { Glyph } from "@/ui/glyph";
import { Empty } from "@/ui/notice";
import { Page } from "@/ui/page";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { StatePill } from "@/ui/state-pill";
import { CancelValidation } from "./cancel-dialog";
import { byBenchmark, settled, stateText, worst } from "./labels";
import { MetricRow } from "./metric-row";
import { validationQuery } from "./queries";
import { ValidationProgress, ValidationProgressBar } from "./validation-progress";

const route = getRouteApi("/shell/validation/$id");

export function ResultPage() {
  const { id } = route.useParams();
  const polling = usePolling(5_000, 3_000);
  const query = useQuery({
    ...validationQuery(id),
    refetchInterval: (q) => (q.state.data && settled(q.state.data) ? false : polling),
  });
  const validation = query.data;
  return (
    <Page
      title={validation ? `${humanize(validation.suite)} on ${validation.node}` : "Validation"}
      crumb={
        <Link to="/validation" search={{}} className="hover:underline">
          Validation
        </Link>
      }
      mark={validation && <Mark validation={validation} />}
      meta={validation && <Meta validation={validation} />}
      actions={
        <>
          {validation && <CancelValidation validation={validation} />}
          <CopyMenu commands={[curl(`/v1/validations/${id}`)]} />
        </>
      }
    >
      <QueryView query={query}>{(data) => <Body validation={data} />}</QueryView>
    </Page>
  );
}

function Mark({ validation }: { validation: Validation }) {
  if (settled(validation)) return <StatePill look={statusStyleOf(verdict, validation.verdict)} />;
  return (
    <StatePill
      look={{
        label: validation.held ? "Held" : stateText[validation.state],
        tone: "validating",
        glyph: "half",
        about: "Not finished",
      }}
    />
  );
}

function Meta({ validation }: { validation: Validation }) {
  const { started_at, finished_at, sweep, run, benchmarks, attempt } = validation;
  return (
    <>
      <Link
        to="/nodes/$name"
        params={{ name: validation.node }}
        search={{}}
        className="font-medium text-accent hover:underline"
      >
        {validation.node}
      </Link>
      {sweep !== null && (
        <Link
          to="/validation/sweeps/$id"
          params={{ id: sweep }}
          search={{ run: run ?? undefined }}
          className="text-accent hover:underline"
        >
          of a sweep
        </Link>
      )}
      {benchmarks !== null && (
        <span title={benchmarks.join(", ")}>{plural(benchmarks.length, "benchmark")} of the suite</span>
      )}
      {attempt > 1 && <span>attempt {attempt}</span>}
      <span>
        requested <Age at={validation.created_at} />
      </span>
      {started_at !== null && finished_at !== null && <span>took {duration(finished_at - started_at)}</span>}
      {settled(validation) && validation.results.length > 0 && (
        <Link
          to="/validation/$id/comparison"
          params={{ id: validation.id }}
          search={{}}
          className="text-accent hover:underline"
        >
          compare with earlier
        </Link>
      )}
      <CopyText text={validation.id} shown={shortId(validation.id)} />
    </>
  );
}

function Body({ validation }: { validation: Validation }) {
  const groups = byBenchmark(validation.results);
  const devices = new Set(validation.results.map((result) => result.device)).size;
  return (
    <>
      <Reason validation={validation} />
      {!settled(validation) && <Underway validation={validation} />}
      {groups.length === 0 ? (
        settled(validation) && (
          <Panel>
            <Empty title="No results.">
              {validation.state === "expired" &&
                (validation.held
                  ? "A job ran on the node. Run the validation again when the job has ended."
                  : "The node did not fetch or complete the task in time. Run the validation again.")}
            </Empty>
          </Panel>
        )
      ) : (
        <Panel flush title="Metrics" about="band: accepted by the criterion; tick: measured">
          {groups.map((group) => (
            <section key={group.benchmark} className="border-line border-t px-4 py-2">
              <h3 className="flex items-center gap-3 py-1 font-mono text-ink-2 text-xs">
                {group.benchmark}
                <StatePill look={statusStyleOf(verdict, worst(group.results))} quiet />
              </h3>
              {group.results.map((result) => (
                <MetricRow
                  key={`${result.device}/${result.metric}`}
                  result={result}
                  validation={validation.id}
                  named={devices > 1}
                />
              ))}
            </section>
          ))}
        </Panel>
      )}
    </>
  );
}

/** The reason of the verdict. Unknown is shown like a failure, because it does not pass. */
function Reason({ validation }: { validation: Validation }) {
  if (!validation.reason) return null;
  if (!settled(validation) || validation.verdict !== "unknown")
    return <p className="max-w-4xl text-ink text-sm first-letter:uppercase">{validation.reason}</p>;
  return (
    <div className="flex max-w-4xl items-start gap-3 rounded-md bg-unknown-soft px-3 py-2.5 text-sm">
      <span className="mt-1">
        <Glyph name="question" tone="unknown" />
      </span>
      <div>
        <p className="font-medium text-ink">
          {validation.cancelled_at === null ? "Health unknown" : "Canceled: health unknown"}
        </p>
        <p className="text-ink-2 first-letter:uppercase">{validation.reason}</p>
      </div>
    </div>
  );
}

const waits: Record<Validation["state"], string> = {
  queued: "The node has not fetched the task. Nodes ask for tasks every few seconds.",
  taken: "The node has the task and starts it soon.",
  running: "Results arrive at the end.",
  done: "",
  expired: "",
};

function Underway({ validation }: { validation: Validation }) {
  const { progress } = validation;
  return (
    <Panel title="Progress" about={<ValidationProgress validation={validation} />}>
      <div className="flex flex-col gap-2 text-sm">
        <ValidationProgressBar validation={validation} />
        {progress !== null && progress.done.length > 0 && (
          <p className="text-ink-2">
            Ended: <span className="font-mono text-xs">{[...new Set(progress.done)].join(", ")}</span>
          </p>
        )}
        <p className="text-ink-3 text-xs">
          {validation.held
            ? "It starts when other nodes of its run have ended and no job runs on the node."
            : waits[validation.state]}
          {validation.cancelled_at !== null && (
            <>
              {" "}
              Canceled <Age at={validation.cancelled_at} />; the node stops within 5 s.
            </>
          )}
          {validation.started_at !== null && (
            <>
              {" "}
              Running for <Age at={validation.started_at} suffix="" />.
            </>
          )}
        </p>
      </div>
    </Panel>
  );
}
