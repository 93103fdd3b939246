/** One proposal: its action, its reason, the results of the rules, and the operator's decision. */
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import type { Remediation, RemediationRule } from "@/api/types";
import { DeviceLink } from "@/features/devices/device-link";
import { cx } from "@/lib/cx";
import { humanize, readable } from "@/lib/format";
import {
  proposal as proposalLooks,
  recommendedAction,
  ruleVerdict,
  statusStyleOf,
} from "@/lib/status-styles";
import { Age } from "@/ui/age";
import { Button } from "@/ui/button";
import { Glyph } from "@/ui/glyph";
import { StatePill } from "@/ui/state-pill";
import { Decide, type Decision } from "./decide";
import { actionText, isDenied, isWaiting } from "./model";

interface Props {
  proposal: Remediation;
  /** On the page of an incident or node, the link to it is omitted. */
  within?: "incident" | "node";
}

export function ProposalCard({ proposal, within }: Props) {
  const [decision, setDecision] = useState<Decision | null>(null);
  const waiting = isWaiting(proposal);
  return (
    <article className="border-line border-t px-4 py-3 first:border-t-0">
      <header className="flex flex-wrap items-center gap-x-3 gap-y-1.5">
        <StatePill look={statusStyleOf(proposalLooks, proposal.state)} />
        <h3 className="font-semibold text-base text-ink">{actionText(proposal)}</h3>
        {proposal.dry_run && <DryRun />}
        <span className="text-ink-3 text-xs">
          <Age at={proposal.created_at} />
        </span>
        {waiting && (
          <span className="ml-auto flex gap-2">
            <Button onClick={() => setDecision("dismiss")}>Dismiss</Button>
            {!isDenied(proposal) && (
              <Button kind="primary" onClick={() => setDecision("accept")}>
                Accept
              </Button>
            )}
          </span>
        )}
      </header>
      <p className="mt-1 max-w-prose text-ink-2 text-sm">{readable(proposal.reason)}</p>
      <p className="mt-1 flex flex-wrap gap-x-4 gap-y-0.5 text-ink-3 text-xs">
        <span title={statusStyleOf(recommendedAction, proposal.recommended_action).about}>
          recommended action{" "}
          <b className="font-medium text-ink-2">
            {statusStyleOf(recommendedAction, proposal.recommended_action).label}
          </b>
        </span>
        {within !== "node" && (
          <Link
            to="/nodes/$name"
            params={{ name: proposal.node }}
            search={{}}
            className="font-medium text-accent hover:underline"
          >
            {proposal.node}
          </Link>
        )}
        {proposal.device && <DeviceLink node={proposal.node} device={proposal.device} />}
        {proposal.incident && within !== "incident" && (
          <Link
            to="/incidents/$id"
            params={{ id: proposal.incident }}
            className="font-medium text-accent hover:underline"
          >
            incident
          </Link>
        )}
        {proposal.decided_at !== null && (
          <span>
            decided by {proposal.decided_by ?? "unknown"}, <Age at={proposal.decided_at} />
          </span>
        )}
      </p>
      {proposal.rules.length > 0 && <Rules rules={proposal.rules} open={waiting && !within} />}
      {decision && <Decide proposal={proposal} decision={decision} onClose={() => setDecision(null)} />}
    </article>
  );
}

export function DryRun() {
  return (
    <span
      title="Mainstay does not act: automatic mode is off"
      className="inline-flex h-5 items-center rounded-[5px] border border-line-strong border-dashed px-1.5 font-medium text-2xs text-ink-2"
    >
      dry run
    </span>
  );
}

/** The rules in the order of their evaluation. */
function Rules({ rules, open }: { rules: RemediationRule[]; open: boolean }) {
  const [all, setAll] = useState(open);
  const against = rules.filter((rule) => rule.verdict !== "allow");
  const shown = all ? rules : against;
  return (
    <div className="mt-2">
      <ol aria-label="Rules" className="flex flex-col gap-1">
        {shown.map((rule) => {
          const look = statusStyleOf(ruleVerdict, rule.verdict);
          return (
            <li
              key={rule.name}
              className="grid grid-cols-[5.5rem_minmax(0,11rem)_minmax(0,1fr)] items-baseline gap-x-2 text-xs max-sm:grid-cols-[5.5rem_minmax(0,1fr)]"
            >
              <StatePill look={look} quiet />
              <span className={cx("truncate", rule.verdict === "allow" ? "text-ink-3" : "font-medium")}>
                {humanize(rule.name)}
              </span>
              <span className="block text-ink-2 first-letter:uppercase max-sm:col-span-2">
                {readable(rule.reason)}
              </span>
            </li>
          );
        })}
      </ol>
      {!all && rules.length > against.length && (
        <button
          type="button"
          onClick={() => setAll(true)}
          className="mt-1 inline-flex items-center gap-1.5 text-ink-3 text-xs hover:text-ink"
        >
          <Glyph name="check" tone="healthy" size={10} />
          {against.length === 0 ? "All" : "The other"} {rules.length - against.length} rules allow it
        </button>
      )}
    </div>
  );
}
