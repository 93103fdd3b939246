import { Link } from "@tanstack/react-router";
import type { ValidationPlan } from "@/api/types";
import { age, percent, plural, shortId } from "@/lib/format";
import { Age } from "@/ui/age";
import { CopyMenu, CopyText, curl } from "@/ui/copy";
import { Stat } from "@/ui/facts";
import { Glyph } from "@/ui/glyph";
import { Panel } from "@/ui/panel";
import { auditOrder, type Considered, headline, riskText, setText } from "./model";

export function PlanView({ plan }: { plan: ValidationPlan }) {
  return (
    <>
      <Panel
        title="Plan"
        about={
          <>
            created <Age at={plan.created_at} />
          </>
        }
        aside={
          <>
            <CopyText text={plan.id} shown={shortId(plan.id)} />
            <CopyMenu commands={[curl(`/v1/validation-plans/${plan.id}`)]} />
          </>
        }
      >
        <p className="font-medium text-ink text-sm">{headline(plan)}</p>
        <p className="mt-0.5 flex max-w-4xl items-baseline gap-2 text-ink-2 text-sm">
          {!plan.learned && <Glyph name="question" tone="unknown" />}
          <span className="first-letter:uppercase">{plan.reason}</span>
        </p>
        {plan.learned && !plan.reached && (
          <p className="mt-2 flex items-center gap-2 text-ink-2 text-sm">
            <Glyph name="triangle" tone="suspect" />
            The accepted risk of {percent(plan.target_risk)} is not reached.
          </p>
        )}
        <div className="mt-3 grid grid-cols-2 gap-x-6 gap-y-3 sm:grid-cols-4">
          <Stat value={riskText(plan, plan.risk_before)} name="risk before" />
          <Stat value={riskText(plan, plan.risk_after)} name="after this plan" />
          <Stat value={riskText(plan, plan.risk_full)} name="after the whole suite" />
          <Stat value={age(plan.seconds)} name="per node" note={`whole suite ${age(plan.full_seconds)}`} />
        </div>
        <p className="mt-3 text-ink-3 text-xs">
          A job of {age(plan.job_hours * 3600)}, {plural(plan.defects, "past defect")}, model: {plan.model}
          {plan.worth_node_hours !== null &&
            `, value of an averted incident: ${plan.worth_node_hours} node-hours`}
          .
        </p>
      </Panel>
      {plan.considered.length > 0 && <Audit plan={plan} />}
      {plan.node_risks.length > 0 && <Nodes plan={plan} />}
    </>
  );
}

const columns = ["Benchmark", "Risk reduction", "Cost", "Risk after", "Found", "Found alone", "Reason"];

/** Every evaluated benchmark, chosen or not, with the reason. */
function Audit({ plan }: { plan: ValidationPlan }) {
  return (
    <Panel title="Benchmarks evaluated" about="chosen ones first, in their order" flush>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a scrolling region must be reachable by keyboard */}
      <section className="relative overflow-x-auto" tabIndex={0} aria-label="Audit table">
        <table aria-label="Benchmarks evaluated" className="w-full border-collapse text-sm">
          <thead>
            <tr className="border-line border-b text-left text-ink-3 text-xs">
              {columns.map((name) => (
                <th key={name} scope="col" className="h-8 whitespace-nowrap px-2.5 font-medium first:pl-4">
                  {name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {auditOrder(plan).map((one) => (
              <AuditRow key={one.benchmark} one={one} learned={plan.learned} />
            ))}
          </tbody>
        </table>
      </section>
    </Panel>
  );
}

function AuditRow({ one, learned }: { one: Considered; learned: boolean }) {
  const cell = "num whitespace-nowrap px-2.5 py-1.5";
  return (
    <tr className="border-line border-b align-baseline last:border-b-0">
      <th scope="row" className="whitespace-nowrap py-1.5 pr-2.5 pl-4 text-left font-normal">
        <span className="inline-flex items-center gap-2">
          <Glyph name={one.chosen ? "check" : "ring"} tone={one.chosen ? "healthy" : "unknown"} size={11} />
          <span className="font-mono text-xs">{one.benchmark}</span>
          <span className="sr-only">{one.chosen ? "chosen" : "not chosen"}</span>
        </span>
      </th>
      <td className={cell}>{learned ? percent(one.gain, 2) : "unknown"}</td>
      <td className={cell}>{age(one.seconds)}</td>
      <td className={cell}>{learned ? percent(one.risk_after, 2) : "unknown"}</td>
      <td className={cell}>{one.finds}</td>
      <td className={cell}>{one.alone}</td>
      <td className="min-w-56 px-2.5 py-1.5 text-ink-2">{one.reason}</td>
    </tr>
  );
}

/** The most nodes to list, riskiest first; the API returns all. */
const SHOWN = 50;

type NodeRisk = ValidationPlan["node_risks"][number];

function Nodes({ plan }: { plan: ValidationPlan }) {
  const riskiest = [...plan.node_risks].sort((a, b) => b.p - a.p);
  return (
    <Panel
      title={plan.per_node ? "Benchmarks by node" : "Risk by node"}
      about={`${plan.run_on.length} to validate, ${plan.nodes.length - plan.run_on.length} without validation`}
      flush
    >
      <ul aria-label="Nodes of the plan">
        {riskiest.slice(0, SHOWN).map((one) => (
          <NodeLine key={one.node} one={one} plan={plan} />
        ))}
      </ul>
    </Panel>
  );
}

function NodeLine({ one, plan }: { one: NodeRisk; plan: ValidationPlan }) {
  const reasons = Object.entries(one.reasons ?? {});
  const ordered = plan.validations?.[one.node];
  return (
    <li className="border-line border-t px-4 py-1.5 text-sm">
      <div className="flex flex-wrap items-baseline gap-x-4">
        <Link
          to="/nodes/$name"
          params={{ name: one.node }}
          search={{}}
          className="font-medium hover:underline"
        >
          {one.node}
        </Link>
        <span className="min-w-0 font-mono text-ink-2 text-xs">{setText(plan, one.node)}</span>
        {ordered !== undefined && (
          <Link to="/validation/$id" params={{ id: ordered }} className="text-accent text-xs hover:underline">
            ordered
          </Link>
        )}
        <span className="num ml-auto text-ink-2">
          {plan.learned
            ? `${percent(one.p, 2)} risk, ${percent(one.covered, 0)} of it covered`
            : "risk unknown"}
        </span>
        <span className="w-28 text-ink-3 text-xs">
          {one.checked ? `validate, ${age(one.seconds)}` : "no validation"}
        </span>
      </div>
      {reasons.length > 0 && (
        <details className="text-xs">
          <summary className="w-max cursor-pointer text-ink-3 hover:text-ink">
            Reasons <span className="sr-only">on {one.node}</span>
          </summary>
          <dl className="grid grid-cols-[max-content_minmax(0,1fr)] gap-x-4 gap-y-0.5 py-1">
            {reasons.map(([benchmark, why]) => (
              <div key={benchmark} className="contents">
                <dt className="font-mono text-ink-2">{benchmark}</dt>
                <dd className="text-ink-2">{why}</dd>
              </div>
            ))}
          </dl>
        </details>
      )}
    </li>
  );
}
