/** One validation: every metric against its criterion, and for each verdict the reason. */
import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import type { Validation, ValidationResult } from "@/api/types";
import { bandGeometry } from "@/charts/criterion";
import { CriterionBand } from "@/charts/criterion-band";
import { cx } from "@/lib/cx";
import { duration, humanize, quantity, shortId, signalLabel } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { lookOf, verdict } from "@/lib/states";
import { Age } from "@/ui/age";
import { CopyMenu, CopyText, curl } from "@/ui/copy";
import { Empty } from "@/ui/notice";
import { Page } from "@/ui/page";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { StatePill } from "@/ui/state-pill";
import { validationQuery } from "./queries";
import { byBenchmark, settled, stateText } from "./words";

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
      mark={
        validation &&
        (settled(validation) ? (
          <StatePill look={lookOf(verdict, validation.verdict)} />
        ) : (
          <StatePill
            look={{
              label: stateText[validation.state],
              tone: "validating",
              glyph: "half",
              about: "Not finished",
            }}
          />
        ))
      }
      meta={validation && <Meta validation={validation} />}
      actions={<CopyMenu commands={[curl(`/v1/validations/${id}`)]} />}
    >
      <QueryView query={query}>{(data) => <Body validation={data} />}</QueryView>
    </Page>
  );
}

function Meta({ validation }: { validation: Validation }) {
  const { started_at, finished_at } = validation;
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
      <span>
        asked <Age at={validation.created_at} />
      </span>
      {started_at !== null && finished_at !== null && <span>took {duration(finished_at - started_at)}</span>}
      <CopyText text={validation.id} shown={shortId(validation.id)} />
    </>
  );
}

function Body({ validation }: { validation: Validation }) {
  const groups = byBenchmark(validation.results);
  const devices = new Set(validation.results.map((result) => result.device)).size;
  return (
    <>
      {validation.reason && (
        <p className={cx("max-w-4xl", settled(validation) ? "text-ink" : "text-ink-2")}>
          {validation.reason}
        </p>
      )}
      {groups.length === 0 ? (
        <Panel>
          <Empty title={settled(validation) ? "No result came back." : "No result yet."}>
            {validation.state === "queued" &&
              "The node has not fetched the order. It asks every few seconds while it lives."}
            {validation.state === "taken" && "The node has the order and is about to start."}
            {validation.state === "running" &&
              "The benchmarks are running; results come all at once at the end."}
            {validation.state === "expired" &&
              "The node did not fetch or finish the order in time, so nothing is known."}
          </Empty>
        </Panel>
      ) : (
        <Panel
          flush
          title="Metrics"
          about="the band is what the criterion accepts, the tick what was measured"
        >
          {groups.map((group) => (
            <section key={group.benchmark} className="border-line border-t px-4 py-2">
              <h3 className="py-1 font-mono text-ink-2 text-xs">{group.benchmark}</h3>
              {group.results.map((result) => (
                <MetricRow key={`${result.device}/${result.metric}`} result={result} named={devices > 1} />
              ))}
            </section>
          ))}
        </Panel>
      )}
    </>
  );
}

function MetricRow({ result, named }: { result: ValidationResult; named: boolean }) {
  const { criterion } = result;
  const text = (value: number | null | undefined) => quantity(value, result.unit);
  return (
    <div className="grid grid-cols-[12rem_6.5rem_minmax(8rem,14rem)_5.5rem_minmax(0,1fr)] items-center gap-x-4 py-1.5 text-sm">
      <span className="truncate" title={result.metric}>
        {named && <span className="num mr-2 text-ink-3 text-xs">{result.device}</span>}
        {signalLabel(result.metric)}
      </span>
      <span className="num text-right font-medium">{text(result.value)}</span>
      <div className="num text-2xs text-ink-3">
        <CriterionBand
          low={criterion?.low ?? null}
          high={criterion?.high ?? null}
          value={result.value}
          verdict={result.verdict}
          label={`${result.metric}: ${text(result.value)}, accepted ${text(criterion?.low)} to ${text(criterion?.high)}`}
        />
        <Limits
          low={criterion?.low ?? null}
          high={criterion?.high ?? null}
          value={result.value}
          text={text}
        />
      </div>
      <StatePill look={lookOf(verdict, result.verdict)} quiet />
      <span className="min-w-0 text-ink-2 text-xs">
        {result.reason}
        {criterion && (
          <span className="text-ink-3">
            {" "}
            ({criterion.source}, n = {criterion.n})
          </span>
        )}
      </span>
    </div>
  );
}

interface LimitsProps {
  low: number | null;
  high: number | null;
  value: number | null;
  text: (value: number) => string;
}

/** The limits, each under its edge of the band; one where both are the same. */
function Limits({ low, high, value, text }: LimitsProps) {
  const band = bandGeometry(low, high, value);
  if (!band) return null;
  const at = (share: number) => ({ left: `${Math.min(0.82, Math.max(0, share - 0.08)) * 100}%` });
  return (
    <p className="relative h-3.5 whitespace-nowrap">
      {low !== null && (
        <span className="absolute" style={at(band.from)}>
          {high === null ? "≥ " : ""}
          {text(low)}
        </span>
      )}
      {high !== null && high !== low && (
        <span className="absolute" style={at(band.to)}>
          {low === null ? "≤ " : ""}
          {text(high)}
        </span>
      )}
    </p>
  );
}
