/** One criterion: its reference sample, its repeatability, and the newest runs. */
import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import type { CriterionDetail, CriterionRun } from "@/api/types";
import { EcdfChart, EcdfLegend, limitText } from "@/charts/ecdf-chart";
import { cx } from "@/lib/cx";
import { humanize, percent, plural, quantity, signalLabel } from "@/lib/format";
import { statusStyleOf, verdict } from "@/lib/status-styles";
import { Age } from "@/ui/age";
import { CopyMenu, curl } from "@/ui/copy";
import { type Fact, Facts } from "@/ui/facts";
import { Empty } from "@/ui/notice";
import { Page } from "@/ui/page";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { StatePill } from "@/ui/state-pill";
import { type CriterionKey, criterionQuery } from "./queries";

const route = getRouteApi("/shell/validation/criterion");

export function CriterionPage() {
  const { cohort = "", benchmark = "", metric = "", validation } = route.useSearch();
  const key: CriterionKey = { cohort, benchmark, metric };
  const query = useQuery(criterionQuery(key, validation));
  return (
    <Page
      title={metric ? `${humanize(benchmark)}: ${signalLabel(metric)}` : "Criterion"}
      crumb={
        <Link to="/validation" search={{ tab: "suites" }} className="hover:underline">
          Suites and criteria
        </Link>
      }
      meta={<span>{cohort}</span>}
      actions={
        <CopyMenu commands={[curl(`/v1/criteria/detail?${new URLSearchParams({ ...key }).toString()}`)]} />
      }
    >
      <QueryView query={query}>{(detail) => <Body detail={detail} about={validation} />}</QueryView>
    </Page>
  );
}

function facts(detail: CriterionDetail): Fact[] {
  const { distribution, unit } = detail;
  const known: Fact[] = [
    { name: "Limits", value: limitText(detail.low, detail.high, unit) },
    { name: "Learned from", value: `${plural(detail.n, "sample")}, ${detail.source}` },
    { name: "Learned", value: <Age at={detail.learned_at} /> },
  ];
  if (detail.warn !== null) known.push({ name: "Warns from", value: quantity(detail.warn, unit) });
  if (detail.allowed.length > 0)
    known.push({ name: "Allowed", value: detail.allowed.map((v) => quantity(v, unit)).join(", ") });
  if (distribution === null) return known;
  return [
    ...known,
    {
      name: "Fails at similarity",
      value: `${distribution.alpha} or less, warns at ${distribution.warn_alpha}`,
    },
    {
      name: "Repeatability",
      value:
        distribution.repeatability === null ? (
          <span className="text-ink-2">unknown: too few runs per device</span>
        ) : (
          percent(distribution.repeatability, 2)
        ),
    },
    {
      name: "Detectable slowdown",
      value: `${percent(distribution.detectable, 2)}: 95% of devices with it fail`,
    },
    { name: "Excluded", value: `${plural(distribution.excluded, "run")} of unhealthy devices` },
  ];
}

function Body({ detail, about }: { detail: CriterionDetail; about: string | undefined }) {
  const { distribution, runs } = detail;
  return (
    <div className="grid items-start gap-4 lg:grid-cols-[minmax(0,1fr)_22rem]">
      <Panel
        title="Distribution"
        about={`${distribution ? plural(distribution.reference.length, "reference value") : "no reference sample"}, ${plural(runs.length, "newest run")}`}
      >
        <div className="flex flex-col gap-2">
          {distribution === null && (
            <p className="text-ink-2 text-sm">
              Only limits apply to this metric: it does not repeat well enough for a distribution, or an
              operator set it.
            </p>
          )}
          <EcdfChart
            label="Newest runs beside the reference"
            unit={detail.unit}
            reference={distribution?.reference ?? []}
            runs={[...runs].reverse().map((run) => ({
              key: keyOf(run),
              name: `${run.node} ${run.device}, ${statusStyleOf(verdict, run.verdict).label.toLowerCase()}`,
              values: run.values,
              tone: statusStyleOf(verdict, run.verdict).tone,
              main: about === undefined ? run.verdict === "fail" : run.validation_id === about,
            }))}
            low={detail.low}
            high={detail.high}
            height={260}
          />
          <EcdfLegend one="a run" />
        </div>
      </Panel>
      <Panel title="Criterion">
        <Facts facts={facts(detail)} />
      </Panel>
      <Panel title="Newest runs" about="newest first" flush className="lg:col-span-2">
        {runs.length === 0 ? (
          <div className="px-4 pb-3">
            <Empty title="No runs of this cohort." />
          </div>
        ) : (
          <ul>
            {runs.map((run) => (
              <RunRow key={keyOf(run)} run={run} unit={detail.unit} about={run.validation_id === about} />
            ))}
          </ul>
        )}
      </Panel>
    </div>
  );
}

const keyOf = (run: CriterionRun) => `${run.validation_id}/${run.device}`;

function RunRow({ run, unit, about }: { run: CriterionRun; unit: string; about: boolean }) {
  const first = run.values[0];
  const last = run.values.at(-1);
  return (
    <li
      aria-current={about || undefined}
      className={cx(
        "grid grid-cols-[6rem_minmax(0,12rem)_minmax(0,1fr)_auto] items-center gap-x-4 border-line border-t px-4 py-2 text-sm max-md:grid-cols-[6rem_minmax(0,1fr)_auto]",
        about && "bg-accent-soft",
      )}
    >
      <StatePill look={statusStyleOf(verdict, run.verdict)} quiet />
      <Link
        to="/validation/$id"
        params={{ id: run.validation_id }}
        className="truncate font-medium hover:underline"
      >
        {run.node} <span className="num font-normal text-ink-3 text-xs">{run.device}</span>
      </Link>
      <span className="num text-ink-2 max-md:order-last max-md:col-span-3">
        {first === undefined || last === undefined
          ? "no measurement"
          : first === last
            ? quantity(first, unit)
            : `${quantity(first, unit)} to ${quantity(last, unit)}`}{" "}
        <span className="text-ink-3 text-xs">({plural(run.values.length, "value")})</span>
      </span>
      <span className="text-ink-3 text-xs">
        <Age at={run.finished_at} />
      </span>
    </li>
  );
}
