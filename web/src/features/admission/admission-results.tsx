import { Link } from "@tanstack/react-router";
import type { Admission, NodeAdmission } from "@/api/types";
import { humanize, integer, plural } from "@/lib/format";
import { statusStyleOf } from "@/lib/status-styles";
import { Age } from "@/ui/age";
import { Panel } from "@/ui/panel";
import { StatePill } from "@/ui/state-pill";
import { decisionLook, deniedUnknown } from "./model";

/** The most nodes to list; the API returns all. */
export const SHOWN = 200;

export function Answer({ answer }: { answer: Admission }) {
  const ignorant = deniedUnknown(answer.nodes);
  return (
    <Panel
      title="Result"
      about={
        <>
          for {answer.job}, <Age at={answer.at} />
        </>
      }
      flush
    >
      <div className="flex flex-col gap-1.5 px-4 pb-3 text-sm" aria-live="polite">
        <div>
          <StatePill look={statusStyleOf(decisionLook, answer.decision)} />
        </div>
        <p className="first-letter:uppercase">{answer.reason}.</p>
        <p className="text-ink-2">
          {plural(answer.allowed, "node")} of which there is nothing to say
          {ignorant > 0 && `; ${integer(ignorant)} denied only for missing data: run a validation`}.
        </p>
        {answer.spares.length > 0 && (
          <p>
            Available spare nodes:{" "}
            {answer.spares.map((node, i) => (
              <span key={node}>
                {i > 0 && ", "}
                <NodeLink node={node} />
              </span>
            ))}
          </p>
        )}
        {answer.spares.length === 0 && answer.decision === "deny" && (
          <p className="text-ink-2">No spare nodes of the same cohorts.</p>
        )}
      </div>
      <ul aria-label="Nodes with reasons">
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

export function Row({ node, place }: { node: NodeAdmission; place?: string }) {
  return (
    <li className="grid grid-cols-[8.5rem_minmax(0,10rem)_minmax(0,1fr)] items-baseline gap-x-4 gap-y-1 border-line border-t px-4 py-2 text-sm max-md:grid-cols-[8.5rem_minmax(0,1fr)]">
      <StatePill look={statusStyleOf(decisionLook, node.decision)} quiet />
      {node.reasons.some((reason) => reason.code === "unknown_node") ? (
        <span className="font-medium">{node.node}</span>
      ) : (
        <NodeLink node={node.node} />
      )}
      <ul className="min-w-0 max-md:col-span-2">
        {place && <li className="text-ink-2">{place}</li>}
        {node.reasons.map((reason) => (
          <li key={reason.code} className="text-ink-2">
            <span className="text-ink">{humanize(reason.code)}:</span> {reason.text}
          </li>
        ))}
        {node.validated_at !== null && (
          <li className="text-ink-3 text-xs">
            last validated with {node.suite ?? "a suite"} <Age at={node.validated_at} />
          </li>
        )}
      </ul>
    </li>
  );
}
