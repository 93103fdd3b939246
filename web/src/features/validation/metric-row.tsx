/** One metric with its criterion, and its distribution beside the learned reference. */
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import type { CriterionDetail, ValidationResult } from "@/api/types";
import { bandGeometry } from "@/charts/criterion";
import { CriterionBand } from "@/charts/criterion-band";
import { EcdfChart } from "@/charts/ecdf-chart";
import { plural, quantity, signalLabel } from "@/lib/format";
import { statusStyleOf, verdict } from "@/lib/status-styles";
import { Icon } from "@/ui/icon";
import { QueryView } from "@/ui/query-view";
import { Skeleton } from "@/ui/skeleton";
import { StatePill } from "@/ui/state-pill";
import { WHOLE } from "./labels";
import { judgingQuery } from "./queries";

interface Props {
  result: ValidationResult;
  validation: string;
  /** Whether several devices were measured, so that each row names its device. */
  named: boolean;
}

export function MetricRow({ result, validation, named }: Props) {
  const { criterion } = result;
  const judged = criterion !== null && criterion.low !== criterion.high; // a fingerprint has no distribution
  const [open, setOpen] = useState(judged && (result.verdict === "fail" || result.verdict === "warn"));
  const text = (value: number | null | undefined) => quantity(value, result.unit);
  return (
    <div>
      <div className="grid grid-cols-[13rem_6.5rem_minmax(8rem,14rem)_5.5rem_minmax(0,1fr)_2rem] items-center gap-x-4 gap-y-1 py-1.5 text-sm max-lg:flex max-lg:flex-wrap">
        <span className="min-w-0 truncate max-lg:flex-1 max-lg:whitespace-normal" title={result.metric}>
          {named && <span className="num mr-2 text-ink-3 text-xs">{result.device}</span>}
          {result.metric === WHOLE ? "The whole benchmark" : signalLabel(result.metric)}
        </span>
        <span className="num text-right font-medium">{text(result.value)}</span>
        <div className="num text-2xs text-ink-3 max-lg:order-last max-lg:basis-full">
          <CriterionBand
            low={criterion?.low ?? null}
            high={criterion?.high ?? null}
            value={result.value}
            verdict={result.verdict}
            label={`${result.metric === WHOLE ? result.benchmark : result.metric}: ${text(result.value)}, accepted ${text(criterion?.low)} to ${text(criterion?.high)}`}
          />
          <Limits
            low={criterion?.low ?? null}
            high={criterion?.high ?? null}
            value={result.value}
            text={text}
          />
        </div>
        <div className="contents max-lg:order-2 max-lg:flex max-lg:basis-full max-lg:gap-3">
          <span className="shrink-0">
            <StatePill look={statusStyleOf(verdict, result.verdict)} quiet />
          </span>
          <span className="min-w-0 text-ink-2 text-xs max-lg:pt-0.5">
            {result.reason}
            {criterion && (
              <span className="text-ink-3">
                {" "}
                ({criterion.source}, n = {criterion.n})
              </span>
            )}
          </span>
        </div>
        {judged ? (
          <button
            type="button"
            aria-expanded={open}
            aria-label={`Distribution of ${result.metric} of ${result.device}`}
            onClick={() => setOpen(!open)}
            className="inline-flex size-7 items-center justify-center rounded-md text-ink-3 hover:bg-hover hover:text-ink max-lg:order-1"
          >
            <span className={open ? "" : "-rotate-90"}>
              <Icon name="down" size={14} />
            </span>
          </button>
        ) : (
          <span />
        )}
      </div>
      {open && <Distribution result={result} validation={validation} />}
    </div>
  );
}

function Distribution({ result, validation }: { result: ValidationResult; validation: string }) {
  const { cohort, benchmark, metric } = result;
  const query = useQuery(judgingQuery({ cohort, benchmark, metric }, validation));
  return (
    <div className="pt-1 pb-3">
      <QueryView query={query} loading={<Skeleton className="h-36" />}>
        {(detail) =>
          detail === null ? (
            <p className="text-ink-3 text-xs">
              The criterion of this verdict is no longer stored. Its limits are shown above.
            </p>
          ) : (
            <Drawn detail={detail} result={result} validation={validation} />
          )
        }
      </QueryView>
    </div>
  );
}

interface DrawnProps {
  detail: CriterionDetail;
  result: ValidationResult;
  validation: string;
}

function Drawn({ detail, result, validation }: DrawnProps) {
  const run = detail.runs.find((one) => one.validation_id === validation && one.device === result.device);
  const values = run?.values ?? (result.value === null ? [] : [result.value]);
  const { distribution, unit } = detail;
  const { low, high } = result.criterion ?? detail; // the limits at the time of the verdict
  return (
    <>
      <EcdfChart
        label={`${result.metric} of ${result.device} beside its reference`}
        unit={unit || result.unit}
        reference={distribution?.reference ?? []}
        runs={[
          {
            key: "this",
            name: "this run",
            values,
            tone: statusStyleOf(verdict, result.verdict).tone,
            main: true,
          },
        ]}
        low={low}
        high={high}
      />
      <p className="mt-1 text-ink-3 text-xs">
        {distribution
          ? `The gray line is the reference: ${plural(distribution.reference.length, "value")} of a healthy run. A run fails at a similarity of ${distribution.alpha} or less. `
          : "No reference sample: only limits apply. "}
        {run === undefined && values.length > 0
          ? "The repetitions are no longer stored, so the chart shows only the evaluated value. "
          : `${plural(values.length, "value")} of this run. `}
        <Link
          to="/validation/criterion"
          search={{ cohort: detail.cohort, benchmark: detail.benchmark, metric: detail.metric, validation }}
          className="text-accent underline"
        >
          Compare with other runs
        </Link>
      </p>
    </>
  );
}

interface LimitsProps {
  low: number | null;
  high: number | null;
  value: number | null;
  text: (value: number) => string;
}

/** The limits under the edges of the band; one if both are equal. */
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
