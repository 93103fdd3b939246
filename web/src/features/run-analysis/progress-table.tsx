import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { cx } from "@/lib/cx";
import { age, duration, integer } from "@/lib/format";
import { Button } from "@/ui/button";
import { Glyph } from "@/ui/glyph";
import { groupName, kindsInUse, phaseText, type RankRow } from "./progress-model";
import type { JobProgress } from "./types";

const PAGE = 64;
/** A rank without a report for this long is marked; ranks report twice a second. */
const SILENT_SECONDS = 5;

/** Every rank: step, phase, time in its collective, and started and completed collectives by group. */
export function ProgressTable({ progress, rows }: { progress: JobProgress; rows: RankRow[] }) {
  const [shown, setShown] = useState(PAGE);
  const kinds = kindsInUse(progress);
  const stands = progress.state === "waiting" || progress.state === "hung";
  const lagging = rows.filter((row) => row.lags).length;
  return (
    <div>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a scrolling region must be reachable by keyboard */}
      <section className="-mx-4 overflow-x-auto" aria-label="Progress of the ranks" tabIndex={0}>
        <table className="w-full border-collapse text-sm" aria-label="Ranks and their groups">
          <thead>
            <tr className="border-line border-b text-ink-3 text-xs">
              <Head>Rank</Head>
              <Head>Node</Head>
              <Head right>Step</Head>
              <Head>Phase</Head>
              <Head right>In collective</Head>
              <Head right>Last report</Head>
              {kinds.map((kind) => (
                <Head key={kind} right title={`Collectives started / completed, ${groupName(kind)}`}>
                  {kind} <span className="font-normal">started / completed</span>
                </Head>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.slice(0, shown).map((row) => (
              <Row key={row.rank} row={row} kinds={kinds} stands={stands} />
            ))}
          </tbody>
        </table>
      </section>
      <div className="flex flex-wrap items-center gap-3 pt-3 text-ink-3 text-xs">
        {rows.length > shown && (
          <Button onClick={() => setShown(shown + 4 * PAGE)}>
            Show more of {integer(rows.length)} ranks
          </Button>
        )}
        {progress.omitted > 0 && <span>{integer(progress.omitted)} ranks that lag less are left out</span>}
        {lagging > 0 && (
          <span className="inline-flex items-center gap-1.5">
            <Glyph name="triangle" tone="suspect" size={10} />
            lagging rank: behind in the innermost group with a lag; listed first
          </span>
        )}
      </div>
    </div>
  );
}

function Head({ children, right, title }: { children: React.ReactNode; right?: boolean; title?: string }) {
  return (
    <th
      scope="col"
      title={title}
      className={cx(
        "h-8 whitespace-nowrap px-2.5 font-medium first:pl-4 last:pr-4",
        right ? "text-right" : "text-left",
      )}
    >
      {children}
    </th>
  );
}

const cell = "h-8 whitespace-nowrap px-2.5 align-middle leading-8 first:pl-4 last:pr-4";

function Row({ row, kinds, stands }: { row: RankRow; kinds: string[]; stands: boolean }) {
  const silent = row.age_seconds === null || row.age_seconds > SILENT_SECONDS;
  return (
    <tr className={cx("border-line border-b last:border-b-0", row.lags && "bg-suspect-soft")}>
      <th scope="row" className={cx(cell, "num text-left font-medium")}>
        <span className="inline-flex h-8 items-center gap-1.5 align-middle">
          {row.lags ? <Glyph name="triangle" tone="suspect" size={10} /> : <span className="w-2.5" />}
          {row.rank}
          {row.lags && <span className="sr-only">, behind its group</span>}
        </span>
      </th>
      <td className={cell}>
        {row.node === null ? (
          "–"
        ) : (
          <Link
            to="/nodes/$name"
            params={{ name: row.node }}
            search={{}}
            className="text-ink-2 hover:underline"
          >
            {row.node}
          </Link>
        )}
      </td>
      <td className={cx(cell, "num text-right")}>{integer(row.step)}</td>
      <td className={cx(cell, "text-ink-2")}>{row.phase === null ? "–" : phaseText(row.phase)}</td>
      <td className={cx(cell, "num text-right")}>
        {row.in_collective_seconds === 0 ? (
          <span className="text-ink-3">none</span>
        ) : (
          duration(row.in_collective_seconds)
        )}
      </td>
      <td className={cx(cell, "num text-right", silent ? "font-medium text-suspect" : "text-ink-3")}>
        <span className="inline-flex items-center gap-1.5">
          {silent && <Glyph name="half" tone="suspect" size={10} />}
          {age(row.age_seconds)}
        </span>
      </td>
      {kinds.map((kind) => (
        <Counts key={kind} row={row} kind={kind} stands={stands} />
      ))}
    </tr>
  );
}

function Counts({ row, kind, stands }: { row: RankRow; kind: string; stands: boolean }) {
  const [begun, ended, behind] = [row.enqueued[kind], row.completed[kind], row.behind[kind] ?? 0];
  const marked = row.lags && behind > 0;
  return (
    <td className={cx(cell, "num text-right", marked && "font-semibold text-suspect")}>
      {stands && behind > 0 && (
        <span title={`${integer(behind)} fewer started than other ranks of the group`}>
          −{integer(behind)} ·{" "}
        </span>
      )}
      {integer(begun ?? null)} <span className="text-ink-3">/ {integer(ended ?? null)}</span>
    </td>
  );
}
