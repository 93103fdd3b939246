import { Link } from "@tanstack/react-router";
import type { Admission, NodeAdmission } from "@/api/types";
import { humanize, integer, plural } from "@/lib/format";
import { lookOf } from "@/lib/states";
import { Age } from "@/ui/age";
import { Panel } from "@/ui/panel";
import { StatePill } from "@/ui/state-pill";
import { decisionLook, deniedUnknown } from "./model";

/** Nodes listed: more than anybody reads; the API has them all. */
const SHOWN = 200;

export function Answer({ answer }: { answer: Admission }) {
  const ignorant = deniedUnknown(answer.nodes);
  return (
    <Panel
      title="Answer"
      about={
        <>
          for {answer.job}, <Age at={answer.at} />
        </>
      }
      flush
    >
      <div className="flex flex-col gap-1.5 px-4 pb-3 text-sm" aria-live="polite">
        <div>
          <StatePill look={lookOf(decisionLook, answer.decision)} />
        </div>
        <p className="first-letter:uppercase">{answer.reason}.</p>
        <p className="text-ink-2">
          {plural(answer.allowed, "node")} of which there is nothing to say
          {ignorant > 0 && `; ${integer(ignorant)} denied only because too little is known: a check may tell`}
          .
        </p>
        {answer.spares.length > 0 && (
          <p>
            Could stand in:{" "}
            {answer.spares.map((node, i) => (
              <span key={node}>
                {i > 0 && ", "}
                <NodeLink node={node} />
              </span>
            ))}
          </p>
        )}
        {answer.spares.length === 0 && answer.decision === "deny" && (
          <p className="text-ink-2">No free node of the same cohorts could stand in.</p>
        )}
      </div>
      <ul aria-label="Nodes of which there is something to say">
        {answer.nodes.slice(0, SHOWN).map((node) => (
          <Row key={node.node} node={node} />
        ))}
      </ul>
      {answer.nodes.length > SHOWN && (
        <p className="border-line border-t px-4 py-2 text-ink-2 text-sm">
          And {integer(answer.nodes.length - SHOWN)} more; the API lists them all.
        </p>
      )}
    </Panel>
  );
}

const NodeLink = ({ node }: { node: string }) => (
  <Link
    to="/nodes/$name"
    params={{ name: node }}
    search={{}}
    className="font-medium text-accent hover:underline"
  >
    {node}
  </Link>
);

function Row({ node }: { node: NodeAdmission }) {
  return (
    <li className="grid grid-cols-[8.5rem_minmax(0,10rem)_minmax(0,1fr)] items-baseline gap-x-4 gap-y-1 border-line border-t px-4 py-2 text-sm max-md:grid-cols-[8.5rem_minmax(0,1fr)]">
      <StatePill look={lookOf(decisionLook, node.decision)} quiet />
      {node.reasons.some((reason) => reason.code === "unknown_node") ? (
        <span className="font-medium">{node.node}</span>
      ) : (
        <NodeLink node={node.node} />
      )}
      <ul className="min-w-0 max-md:col-span-2">
        {node.reasons.map((reason) => (
          <li key={reason.code} className="text-ink-2">
            <span className="text-ink">{humanize(reason.code)}:</span> {reason.text}
          </li>
        ))}
        {node.validated_at !== null && (
          <li className="text-ink-3 text-xs">
            last checked by {node.suite ?? "a suite"} <Age at={node.validated_at} />
          </li>
        )}
      </ul>
    </li>
  );
}
