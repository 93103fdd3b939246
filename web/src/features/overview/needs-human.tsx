import { Link } from "@tanstack/react-router";
import type { ReactNode } from "react";
import type { Incident, Remediation } from "@/api/types";
import { summaryOf, titleOf } from "@/features/incidents/life";
import { decisiveRule, wantsText } from "@/features/remediation/model";
import { DryRun } from "@/features/remediation/proposal-card";
import { readable } from "@/lib/format";
import { type Look, lookOf, proposal as proposalLooks, severity } from "@/lib/states";
import { Age } from "@/ui/age";
import { Glyph } from "@/ui/glyph";
import { Empty, ErrorNotice } from "@/ui/notice";
import { Panel } from "@/ui/panel";

interface Props {
  incidents: Incident[];
  proposals: Remediation[];
  /** Why the proposals are not known. */
  error: unknown;
}

/** What only a person can move: proposals that wait for a yes or no, then incidents nobody may act on alone. */
export function NeedsHuman({ incidents, proposals, error }: Props) {
  return (
    <Panel
      title="Needs a human"
      flush
      aside={
        <Link to="/remediation" search={{}} className="text-accent text-sm hover:underline">
          Proposals
        </Link>
      }
    >
      {error !== null && (
        <div className="px-4 pb-3">
          <ErrorNotice error={error} />
        </div>
      )}
      {incidents.length + proposals.length === 0 && error === null ? (
        <div className="px-4 pb-3">
          <Empty title="Nobody is needed.">
            Proposals that wait for a yes or no, incidents without a feasible plan, and verdicts that only a
            person may lift, stand here.
          </Empty>
        </div>
      ) : (
        <ul>
          {proposals.map((item) => (
            <Item
              key={item.id}
              look={lookOf(proposalLooks, item.state)}
              at={item.created_at}
              text={readable(decisiveRule(item.rules)?.why ?? item.reason)}
            >
              <Link
                to="/remediation"
                search={{ node: item.node }}
                className="font-medium text-ink hover:underline"
              >
                {wantsText(item)}
              </Link>{" "}
              {item.dry_run && <DryRun />}
            </Item>
          ))}
          {incidents.map((incident) => (
            <Item
              key={incident.id}
              look={lookOf(severity, incident.severity)}
              at={incident.opened_at}
              text={summaryOf(incident)}
            >
              <Link
                to="/incidents/$id"
                params={{ id: incident.id }}
                className="font-medium text-ink hover:underline"
              >
                {titleOf(incident)}
              </Link>
            </Item>
          ))}
        </ul>
      )}
    </Panel>
  );
}

interface ItemProps {
  look: Look;
  at: number;
  text: string;
  children: ReactNode;
}

function Item({ look, at, text, children }: ItemProps) {
  return (
    <li className="flex items-start gap-2.5 border-line border-t px-4 py-2.5 text-sm">
      <span className="mt-1" title={look.label}>
        <Glyph name={look.glyph} tone={look.tone} />
      </span>
      <div className="min-w-0 flex-1">
        {children}
        {text && <p className="line-clamp-3 text-ink-2">{text}</p>}
      </div>
      <span className="text-ink-3 text-xs leading-5">
        <Age at={at} />
      </span>
    </li>
  );
}
