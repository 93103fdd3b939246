/** The strategies evaluated at one failure, each with its cost or the reason why it was infeasible. */
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import type { Recovery } from "@/api/types";
import { PhaseBar, PhaseLegend } from "@/charts/phase-bar";
import { ranksText } from "@/features/incidents/lifecycle-model";
import { cx } from "@/lib/cx";
import { duration, percent, plural } from "@/lib/format";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Glyph } from "@/ui/glyph";
import {
  type EvaluationTable,
  evaluationTable,
  excessCostText,
  explanationText,
  type OptionRow,
  predictionText,
} from "./decision-model";

export function JobDecision({ recovery }: { recovery: Recovery }) {
  const [open, setOpen] = useState(false);
  const count = recovery.decision?.options.filter((option) => option.feasible).length ?? 0;
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: it only stops dialog events from reaching the row
    <span onClick={(event) => event.stopPropagation()} onKeyDown={(event) => event.stopPropagation()}>
      <Button
        kind="ghost"
        aria-label={`${plural(count, "strategy", "strategies")} evaluated for ${ranksText(recovery.failed_ranks)}`}
        onClick={() => setOpen(true)}
      >
        {plural(count, "strategy", "strategies")}
      </Button>
      {open && <StrategyEvaluation recovery={recovery} onClose={() => setOpen(false)} />}
    </span>
  );
}

function StrategyEvaluation({ recovery, onClose }: { recovery: Recovery; onClose: () => void }) {
  const { decision } = recovery;
  if (!decision) return null;
  const table = evaluationTable(decision, recovery.strategy);
  const prediction = predictionText(recovery);
  return (
    <Dialog
      open
      onOpenChange={(next) => !next && onClose()}
      title="Strategies evaluated"
      about={`Loss of ${ranksText(recovery.failed_ranks)} (${decision.fault})`}
      className="top-[6vh] max-h-[88vh] w-[min(54rem,calc(100vw-2rem))]"
    >
      <p className="mb-2 max-w-prose text-ink-2 text-sm">{explanationText(decision)}</p>
      {prediction && (
        <p className="mb-3 text-ink text-sm">
          {prediction} Excess cost: {excessCostText(recovery)}.
        </p>
      )}
      <ol aria-label="Feasible strategies, best first">
        {table.possible.map((row) => (
          <Possible key={row.name} row={row} table={table} />
        ))}
      </ol>
      <div className="border-line border-t py-3">
        <PhaseLegend phases={table.phases} />
      </div>
      <details className="text-sm">
        <summary className="cursor-pointer text-ink-2">
          {plural(table.impossible.length, "infeasible strategy", "infeasible strategies")}
        </summary>
        <dl className="mt-2 grid gap-x-4 gap-y-1 text-xs sm:grid-cols-[11rem_minmax(0,1fr)]">
          {table.impossible.map((row) => (
            <div key={row.name} className="contents">
              <dt className="text-ink">{row.name}</dt>
              <dd className="mb-1 text-ink-2">{row.option.reason}</dd>
            </div>
          ))}
        </dl>
      </details>
      <p className="mt-4 text-sm">
        <Link to="/simulation" search={{ job: recovery.job }} className="text-accent hover:underline">
          Simulate other recovery policies for this job
        </Link>
      </p>
    </Dialog>
  );
}

function Possible({ row, table }: { row: OptionRow; table: EvaluationTable }) {
  const { option, name } = row;
  return (
    <li
      className={cx(
        "grid grid-cols-[minmax(0,1fr)_max-content] gap-x-4 gap-y-1.5 border-line border-t py-2.5 text-sm md:grid-cols-[12rem_minmax(0,1fr)_7rem]",
        row.done && "-mx-5 bg-accent-soft/60 px-5",
      )}
    >
      <div>
        <p className="font-medium">{name}</p>
        <Marks row={row} />
      </div>
      <div className="min-w-0 max-md:order-last max-md:col-span-2">
        <PhaseBar parts={option.parts} phases={table.phases} scale={table.scale} label={name} />
        <p className="mt-1 text-ink-3 text-xs leading-4">{option.reason}</p>
      </div>
      <div className="num text-right">
        <p className="font-semibold">{duration(option.expected_s)}</p>
        {option.rate !== null && option.rate < 1 && (
          <p className="text-ink-3 text-xs">at {percent(option.rate, 0)}</p>
        )}
      </div>
    </li>
  );
}

function Marks({ row }: { row: OptionRow }) {
  return (
    <>
      {row.done && (
        <p className="mt-0.5 inline-flex items-center gap-1 font-medium text-accent text-xs">
          <Glyph name="check" size={10} /> executed
        </p>
      )}
      {row.chosen && !row.done && <p className="mt-0.5 text-ink-2 text-xs">lowest cost</p>}
      {!row.option.executable && (
        <p className="mt-0.5 text-ink-3 text-xs">for comparison only: jobs cannot execute it</p>
      )}
    </>
  );
}
