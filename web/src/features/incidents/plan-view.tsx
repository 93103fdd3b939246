import type { Incident, Plan } from "@/api/types";
import { PhaseBar, PhaseLegend } from "@/charts/phase-bar";
import { cx } from "@/lib/cx";
import { duration, humanize, plural } from "@/lib/format";
import { Glyph } from "@/ui/glyph";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { ranksText } from "./lifecycle-model";
import { type PlanRow, type PlanTable, planTable, restoreLines } from "./plan-model";

/** Every recovery strategy with its cost; for the chosen one also the actual time. */
export function PlanView({ plan, incident }: { plan: Plan | null; incident: Incident }) {
  if (!plan) {
    return (
      <Panel title="Recovery plan" term="recovery plan">
        <Empty title="No recovery plan.">
          {incident.job
            ? "The coordinator of the job has not reported one."
            : "No job is affected, so no recovery is needed."}
        </Empty>
      </Panel>
    );
  }
  const table = planTable(plan);
  return (
    <Panel
      title={<span id="plan">Recovery plan</span>}
      term="recovery plan"
      about={`for ${ranksText(plan.failed_ranks)}, generation ${plan.generation}`}
    >
      <p className="mb-3 max-w-prose text-ink-2 text-sm">{plan.explanation}</p>
      <ol aria-label="Strategies, best first">
        {table.rows.map((row) => (
          <Row key={row.alternative.strategy} row={row} table={table} plan={plan} />
        ))}
      </ol>
      <div className="mt-3 border-line border-t pt-3">
        <PhaseLegend phases={table.phases} />
      </div>
    </Panel>
  );
}

function Row({ row, table, plan }: { row: PlanRow; table: PlanTable; plan: Plan }) {
  const { alternative, chosen, parts } = row;
  return (
    <li
      className={cx(
        "relative grid grid-cols-[minmax(0,1fr)_max-content] items-start gap-x-4 gap-y-2 border-line border-t py-2.5 text-sm md:grid-cols-[9.5rem_minmax(0,1fr)_8.5rem]",
        chosen && "-mx-4 bg-accent-soft/60 px-4",
      )}
    >
      <div>
        <p className={cx("font-medium", !alternative.feasible && "text-ink-3")}>
          {humanize(alternative.strategy)}
        </p>
        {chosen && (
          <p className="mt-0.5 inline-flex items-center gap-1 font-medium text-accent text-xs">
            <Glyph name="check" size={10} /> chosen
          </p>
        )}
        {!alternative.feasible && (
          <p className="mt-0.5 inline-flex items-center gap-1 text-ink-3 text-xs">
            <Glyph name="cross" size={9} /> not possible
          </p>
        )}
      </div>
      <div className="min-w-0 max-md:order-last max-md:col-span-2">
        {alternative.feasible && (
          <PhaseBar
            parts={parts}
            phases={table.phases}
            scale={table.scale}
            label={`${humanize(alternative.strategy)}, predicted`}
          />
        )}
        {chosen && table.actual && (
          <div className="mt-1">
            <PhaseBar
              parts={table.actual.parts}
              phases={table.phases}
              scale={table.scale}
              label="Actual"
              thin
            />
          </div>
        )}
        <p className={cx("text-xs leading-4", alternative.feasible ? "mt-1.5 text-ink-3" : "text-ink-2")}>
          {alternative.reason}
        </p>
        {chosen && alternative.restores.length > 0 && (
          <ul className="mt-1 text-ink-2 text-xs leading-4">
            {restoreLines(alternative).map((line) => (
              <li key={line}>{line}.</li>
            ))}
          </ul>
        )}
      </div>
      <div className="num text-right">
        {alternative.feasible ? (
          <>
            <p className="font-semibold text-ink">{duration(alternative.seconds)}</p>
            <p className="text-ink-3 text-xs">
              {alternative.steps_lost === 0
                ? "no steps lost"
                : `${plural(alternative.steps_lost ?? 0, "step")} lost`}
            </p>
            {alternative.cost_seconds !== null && alternative.cost_seconds !== alternative.seconds && (
              <p className="text-ink-3 text-xs">costs {duration(alternative.cost_seconds)}</p>
            )}
            {chosen && table.actual && <Actual table={table} plan={plan} />}
          </>
        ) : (
          <span className="text-ink-3">–</span>
        )}
      </div>
    </li>
  );
}

function Actual({ table, plan }: { table: PlanTable; plan: Plan }) {
  return (
    <p
      className="mt-1 border-line-strong border-t pt-1 text-xs"
      title="Actual time divided by predicted time"
    >
      <b className="font-semibold text-ink">{duration(table.actual?.seconds)}</b>{" "}
      <span className="text-ink-3">actual</span>
      <br />
      <span className="text-ink-3">
        {table.accuracy !== null && `${table.accuracy.toFixed(2)} × predicted`}
        {plan.actual_steps_lost !== null && `, ${plan.actual_steps_lost} lost`}
      </span>
    </p>
  );
}
