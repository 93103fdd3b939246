import { Link } from "@tanstack/react-router";
import type { Culprit, LocalizationVerdict } from "@/api/types";
import { bytes, percent, plural } from "@/lib/format";
import { Glyph } from "@/ui/glyph";
import { Panel } from "@/ui/panel";
import { StatePill } from "@/ui/state-pill";
import { culpritName, noiseText, verdictText } from "./model";

export function VerdictPanel({ verdict }: { verdict: LocalizationVerdict }) {
  const unknown = Object.entries(verdict.unknown);
  return (
    <Panel title="Verdict" about={verdict.settled ? "final" : "some components could not be separated"} flush>
      <p className="px-4 pb-3 text-sm">
        {verdictText(verdict)} <span className="text-ink-2">{noiseText(verdict)}</span>
      </p>
      <ul aria-label="Culprits">
        {verdict.culprits.map((culprit) => (
          <CulpritRow key={`${culprit.kind}/${culprit.name.join()}`} culprit={culprit} />
        ))}
      </ul>
      {unknown.length > 0 && (
        <div className="border-line border-t px-4 py-3 text-sm">
          <h3 className="flex items-center gap-2 font-medium text-ink">
            <Glyph name="question" tone="unknown" />
            {plural(unknown.length, "node")} unknown: neither named nor cleared
          </h3>
          <dl className="mt-1.5 grid grid-cols-[max-content_minmax(0,1fr)] gap-x-4 gap-y-1">
            {unknown.map(([node, why]) => (
              <div key={node} className="contents">
                <dt>
                  <NodeLink node={node} />
                </dt>
                <dd className="text-ink-2">{why}</dd>
              </div>
            ))}
          </dl>
        </div>
      )}
      {verdict.good.length > 0 && (
        <details className="border-line border-t px-4 py-2.5 text-sm">
          <summary className="w-max cursor-pointer text-ink-2 hover:text-ink">
            {plural(verdict.good.length, "node")} cleared
          </summary>
          <p className="mt-1 flex flex-wrap gap-x-3 gap-y-1">
            {verdict.good.map((node) => (
              <NodeLink key={node} node={node} />
            ))}
          </p>
        </details>
      )}
    </Panel>
  );
}

const NodeLink = ({ node }: { node: string }) => (
  <Link to="/nodes/$name" params={{ name: node }} search={{}} className="font-medium hover:underline">
    {node}
  </Link>
);

function CulpritRow({ culprit }: { culprit: Culprit }) {
  return (
    <li className="border-line border-t px-4 py-3 text-sm">
      <p className="flex flex-wrap items-center gap-x-3 gap-y-1">
        <StatePill
          look={{
            label: culprit.speed === null ? "Hangs" : `At ${percent(culprit.speed, 0)} of normal speed`,
            tone: "quarantined",
            glyph: "cross",
            about: "Relative to the normal speed",
          }}
        />
        <span className="font-semibold">{culpritName(culprit)}</span>
        {culprit.nodes.map((node) => (
          <NodeLink key={node} node={node} />
        ))}
      </p>
      <p className="mt-1 max-w-4xl text-ink-2">{culprit.summary}</p>
      <p className="mt-1 text-ink-3 text-xs">
        {culprit.sizes.length > 0 &&
          `Observed in messages of ${culprit.sizes.map((s) => bytes(s)).join(", ")}. `}
        {culprit.spared.length > 0 &&
          `Not observed in messages of ${culprit.spared.map((s) => bytes(s)).join(", ")}. `}
        {culprit.also.length > 0 && `Alternatives: ${culprit.also.join(", ")}.`}
      </p>
      <details className="mt-1.5" open={culprit.evidence.length <= 8}>
        <summary className="w-max cursor-pointer text-ink-2 text-xs hover:text-ink">
          {plural(culprit.evidence.length, "pair")} as evidence
        </summary>
        <ul className="mt-1 grid gap-x-6 gap-y-0.5 sm:grid-cols-2 xl:grid-cols-3">
          {culprit.evidence.map((witness) => (
            <li key={`${witness.round}/${witness.a}/${witness.b}`} className="flex gap-3 text-xs">
              <span className="min-w-0 truncate">
                {witness.a} ↔ {witness.b}
              </span>
              <span className="num ml-auto whitespace-nowrap text-ink-2">
                {witness.ratio === null ? "hung" : `${percent(witness.ratio, 0)} of normal`}, round{" "}
                {witness.round}
              </span>
            </li>
          ))}
        </ul>
      </details>
    </li>
  );
}
