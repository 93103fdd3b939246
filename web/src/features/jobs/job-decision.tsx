/** Every way of recovering that was weighed at one failure, with its price or the reason why it was none. */
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import type { Recovery } from "@/api/types";
import { PhaseBar, PhaseLegend } from "@/charts/phase-bar";
import { ranksText } from "@/features/incidents/life";
import { cx } from "@/lib/cx";
import { duration, percent, plural } from "@/lib/format";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Glyph } from "@/ui/glyph";
import {
  explanationText,
  promiseText,
  regretText,
  type WeighedRow,
  type WeighedTable,
  weighedTable,
} from "./decision-model";

export function JobDecision({ recovery }: { recovery: Recovery }) {
  const [open, setOpen] = useState(false);
  const count = recovery.decision?.options.filter((option) => option.feasible).length ?? 0;
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: it only keeps what happens in the dialog from the row
    <span onClick={(event) => event.stopPropagation()} onKeyDown={(event) => event.stopPropagation()}>
      <Button
        kind="ghost"
        aria-label={`${plural(count, "way")} weighed for ${ranksText(recovery.failed_ranks)}`}
        onClick={() => setOpen(true)}
      >
        {plural(count, "way")}
      </Button>
      {open && <Weighed recovery={recovery} onClose={() => setOpen(false)} />}
    </span>
  );
}

function Weighed({ recovery, onClose }: { recovery: Recovery; onClose: () => void }) {
  const { decision } = recovery;
  if (!decision) return null;
  const table = weighedTable(decision, recovery.way);
  const promise = promiseText(recovery);
  return (
    <Dialog
      open
      onOpenChange={(next) => !next && onClose()}
      title="What was weighed"
      about={`When ${ranksText(recovery.failed_ranks)} was lost (${decision.fault})`}
      className="top-[6vh] max-h-[88vh] w-[min(54rem,calc(100vw-2rem))]"
    >
      <p className="mb-2 max-w-prose text-ink-2 text-sm">{explanationText(decision)}</p>
      {promise && (
        <p className="mb-3 text-ink text-sm">
          {promise} Regret: {regretText(recovery)}.
        </p>
      )}
      <ol aria-label="Possible ways, best first">
        {table.possible.map((row) => (
          <Possible key={row.name} row={row} table={table} />
        ))}
      </ol>
      <div className="border-line border-t py-3">
        <PhaseLegend phases={table.phases} />
      </div>
      <details className="text-sm">
        <summary className="cursor-pointer text-ink-2">
          {plural(table.impossible.length, "way")} that could not be taken
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
        <Link to="/what-if" search={{ job: recovery.job }} className="text-accent hover:underline">
          What if this job's failures were met otherwise?
        </Link>
      </p>
    </Dialog>
  );
}

function Possible({ row, table }: { row: WeighedRow; table: WeighedTable }) {
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

function Marks({ row }: { row: WeighedRow }) {
  return (
    <>
      {row.done && (
        <p className="mt-0.5 inline-flex items-center gap-1 font-medium text-accent text-xs">
          <Glyph name="check" size={10} /> carried out
        </p>
      )}
      {row.chosen && !row.done && <p className="mt-0.5 text-ink-2 text-xs">would cost least here</p>}
      {!row.option.executable && (
        <p className="mt-0.5 text-ink-3 text-xs">for comparison: no job chooses it</p>
      )}
    </>
  );
}
