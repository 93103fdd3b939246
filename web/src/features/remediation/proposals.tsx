/** The proposals about one node or one incident, on its page. */
import { useQuery } from "@tanstack/react-query";
import { usePolling } from "@/lib/live";
import { ErrorNotice } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { isWaiting } from "./model";
import { ProposalCard } from "./proposal-card";
import { recentRemediationsQuery } from "./queries";

/** The waiting proposals of a node. */
export function Proposals({ node }: { node: string }) {
  const query = useQuery({ ...recentRemediationsQuery({ node }), refetchInterval: usePolling(15_000) });
  const waiting = query.data?.filter(isWaiting) ?? [];
  if (waiting.length === 0) return null;
  return (
    <Panel title="Remediation proposals" term="remediation" flush>
      {waiting.map((proposal) => (
        <ProposalCard key={proposal.id} proposal={proposal} within="node" />
      ))}
    </Panel>
  );
}

/** All proposals of an incident. */
export function IncidentProposals({ incident, node }: { incident: string; node: string | null }) {
  const query = useQuery({
    ...recentRemediationsQuery(node ? { node } : {}),
    enabled: node !== null,
    refetchInterval: usePolling(10_000),
  });
  const items = query.data?.filter((item) => item.incident === incident) ?? [];
  if (query.isError && !query.data)
    return (
      <Panel title="Remediation proposals" term="remediation">
        <ErrorNotice error={query.error} onRetry={() => void query.refetch()} />
      </Panel>
    );
  if (items.length === 0) return null;
  return (
    <Panel title="Remediation proposals" term="remediation" flush>
      {items.map((proposal) => (
        <ProposalCard key={proposal.id} proposal={proposal} within="incident" />
      ))}
    </Panel>
  );
}
