import { Link } from "@tanstack/react-router";
import type { ReactNode } from "react";
import type { Incident, Remediation } from "@/api/types";
import { summaryOf, titleOf } from "@/features/incidents/lifecycle-model";
import { actionText, decisiveRule } from "@/features/remediation/model";
import { DryRun } from "@/features/remediation/proposal-card";
import { readable } from "@/lib/format";
import { proposal as proposalLooks, type StatusStyle, severity, statusStyleOf } from "@/lib/status-styles";
import { Age } from "@/ui/age";
import { Glyph } from "@/ui/glyph";
import { Empty, ErrorNotice } from "@/ui/notice";
import { Panel } from "@/ui/panel";

interface Props {
  incidents: Incident[];
  proposals: Remediation[];
  /** The error that prevents loading the proposals. */
  error: unknown;
}

/** Items that need an operator: proposals that wait for a decision, then incidents without an automatic action. */
export function ActionRequired({ incidents, proposals, error }: Props) {
  return (
    <Panel
      title="Action required"
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
          <Empty title="No action required.">
            Proposals to accept or dismiss and incidents that need an operator appear here.
          </Empty>
        </div>
      ) : (
        <ul>
          {proposals.map((item) => (
            <Item
              key={item.id}
              look={statusStyleOf(proposalLooks, item.state)}
              at={item.created_at}
              text={readable(decisiveRule(item.rules)?.reason ?? item.reason)}
            >
              <Link
                to="/remediation"
                search={{ node: item.node }}
                className="font-medium text-ink hover:underline"
              >
                {actionText(item)}
              </Link>{" "}
              {item.dry_run && <DryRun />}
            </Item>
          ))}
          {incidents.map((incident) => (
            <Item
              key={incident.id}
              look={statusStyleOf(severity, incident.severity)}
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
  look: StatusStyle;
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
