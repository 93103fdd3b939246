/** Policies side by side: ETTR with its interval, and lost time by cause. */
import type { Simulation } from "@/api/types";
import { age, integer, percent, plural, quantity } from "@/lib/format";
import { Glyph } from "@/ui/glyph";
import { Panel } from "@/ui/panel";
import { IntervalLines, LineLegend } from "./interval-lines";
import { Losses, LossLegend } from "./lost-time";
import { headline, intervalText, type Result, seriesOf } from "./model";

const columns = [
  { name: "Policy" },
  { name: "ETTR", about: "Effective training time ratio: productive time divided by wall time" },
  { name: "95% interval" },
  { name: "With spares", about: "ETTR of all GPUs, including spares" },
  { name: "Interruptions", about: "Mean number per run" },
  { name: "No spare", about: "Mean number of interruptions per run without a free spare" },
];

export function Answer({ answer }: { answer: Simulation }) {
  const varied = answer.sweep_over;
  return (
    <>
      <Panel
        title="Results"
        about={`${plural(answer.gpus, "GPU")}, ${age(answer.days * 86_400)}, ${quantity(answer.failures, "1")} failures per run`}
        flush
      >
        <p className="px-4 pb-2 font-medium text-ink text-sm">{headline(answer)}</p>
        <Policies results={answer.policies} />
      </Panel>
      <Panel title="Lost time by cause" about="mean GPU-hours per run" aside={<LossLegend />}>
        <Losses results={answer.policies} />
      </Panel>
      <Panel
        title={
          varied === "spares"
            ? "ETTR by spare nodes"
            : varied === "mtbf_hours"
              ? "ETTR by node MTBF"
              : "ETTR since the start"
        }
        about={varied === null ? "mean of the runs" : "bars are 95% intervals"}
      >
        <IntervalLines
          series={seriesOf(answer)}
          xName={
            varied === "spares" ? "spare nodes" : varied === "mtbf_hours" ? "node MTBF in hours" : "days"
          }
          logarithmic={varied === "mtbf_hours"}
          marked={varied !== null}
        />
        <LineLegend series={seriesOf(answer)} marked={varied !== null} />
      </Panel>
    </>
  );
}

function Policies({ results }: { results: Result[] }) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a scrolling region must be reachable by keyboard
    <section className="relative overflow-x-auto" tabIndex={0} aria-label="Policies table">
      <table aria-label="Policies compared" className="w-full border-collapse text-sm">
        <thead>
          <tr className="border-line border-b text-left text-ink-3 text-xs">
            {columns.map(({ name, about }) => (
              <th
                key={name}
                scope="col"
                title={about}
                className="h-8 whitespace-nowrap px-2.5 font-medium first:pl-4"
              >
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {results.map((one) => (
            <PolicyLine key={one.policy.name} one={one} />
          ))}
        </tbody>
      </table>
    </section>
  );
}

function PolicyLine({ one }: { one: Result }) {
  const cell = "num whitespace-nowrap px-2.5 py-1.5";
  const head = (
    <th scope="row" className="whitespace-nowrap py-1.5 pr-2.5 pl-4 text-left font-normal">
      <span className="block first-letter:uppercase">{one.policy.description}</span>
      <span className="num block text-ink-3 text-xs">
        {one.policy.save_s > 0 ? `saves every ${age(one.interval_s)}` : "state from a live peer"}, recovers in{" "}
        {age(one.policy.restart_s)}
      </span>
    </th>
  );
  if (one.ettr === null) {
    return (
      <tr className="border-line border-b last:border-b-0">
        {head}
        <td colSpan={columns.length - 1} className="px-2.5 py-1.5 text-ink-2">
          <span className="inline-flex items-center gap-2">
            <Glyph name="question" tone="unknown" size={11} />
            Not possible: {one.impossible}.
          </span>
        </td>
      </tr>
    );
  }
  return (
    <tr className="border-line border-b align-baseline last:border-b-0">
      {head}
      <td className={`${cell} font-medium`}>{percent(one.ettr.mean, 2)}</td>
      <td className={`${cell} text-ink-2`}>{intervalText(one.ettr)}</td>
      <td className={cell}>{percent(one.of_all_gpus, 2)}</td>
      <td className={cell}>{quantity(one.interruptions, "1")}</td>
      <td className={cell}>
        {one.waits === null || one.waits === 0 ? integer(one.waits) : quantity(one.waits, "1")}
      </td>
    </tr>
  );
}
