/** The state of the node, its owner and reason, the available actions, and the past transitions. */
import { useInfiniteQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import type { Node, Transition } from "@/api/types";
import { readable } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { health, owner, statusStyleOf } from "@/lib/status-styles";
import { Age, Clock } from "@/ui/age";
import { Button } from "@/ui/button";
import { Facts } from "@/ui/facts";
import { Glyph } from "@/ui/glyph";
import { Empty, ErrorNotice } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { SkeletonRows } from "@/ui/skeleton";
import { NodeLifecycleBar } from "./lifecycle-bar";
import { allowedActions, blockedReason, likelyAction, type NodeAction } from "./lifecycle-model";
import { actionLabels, NodeActionDialog } from "./node-actions";
import { transitionsQuery } from "./queries";

export function NodeLifecycle({ node }: { node: Node }) {
  const [act, setAct] = useState<NodeAction | null>(null);
  const likely = likelyAction(node);
  const blocked = blockedReason(node);
  const whose = statusStyleOf(owner, node.owner);
  return (
    <Panel
      title="Life cycle"
      aside={allowedActions(node).map((name) => (
        <Button key={name} kind={name === likely ? "primary" : "plain"} onClick={() => setAct(name)}>
          {actionLabels[name].verb}
        </Button>
      ))}
    >
      <NodeLifecycleBar state={node.state} />
      <div className="mt-4 grid gap-x-10 gap-y-5 lg:grid-cols-[minmax(0,4fr)_minmax(0,5fr)]">
        <div className="min-w-0">
          <Facts
            facts={[
              { name: "Reason", value: readable(node.state_reason) || "no reason given" },
              {
                name: "Set by",
                value: <By owner={whose.label} actor={node.actor} about={whose.about} />,
              },
              { name: "Since", value: <Age at={node.state_since} suffix="" /> },
            ]}
          />
          {blocked && (
            <p className="mt-3 flex items-center gap-2 text-ink-2 text-sm">
              <Glyph name="half" tone="draining" size={11} />
              {blocked}
            </p>
          )}
        </div>
        <History node={node.name} />
      </div>
      {act && <NodeActionDialog node={node} act={act} onClose={() => setAct(null)} />}
    </Panel>
  );
}

function By({ owner: label, actor, about }: { owner: string; actor: string; about: string }) {
  return (
    <span title={about}>
      {label}
      {actor && actor !== label.toLowerCase() && <span className="text-ink-3"> · {actor}</span>}
    </span>
  );
}

const FEW = 5;

function History({ node }: { node: string }) {
  const query = useInfiniteQuery({ ...transitionsQuery(node), refetchInterval: usePolling(20_000) });
  const [all, setAll] = useState(false);
  const items = query.data?.pages.flatMap((page) => page.items);
  const more = items && (items.length > FEW || query.hasNextPage);
  return (
    <section aria-label="Transitions" className="min-w-0">
      <h3 className="pb-1 text-ink-3 text-xs">Transitions</h3>
      {query.isPending && <SkeletonRows rows={3} />}
      {query.isError && !items && <ErrorNotice error={query.error} onRetry={() => void query.refetch()} />}
      {items?.length === 0 && (
        <Empty title="No transitions yet.">Every change of state appears here with its reason.</Empty>
      )}
      <ol>
        {(all ? items : items?.slice(0, FEW))?.map((item) => (
          <Row key={item.id} item={item} />
        ))}
      </ol>
      {more && !all && (
        <Button kind="ghost" onClick={() => setAll(true)}>
          Show older
        </Button>
      )}
      {all && query.hasNextPage && (
        <Button busy={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
          Load more
        </Button>
      )}
    </section>
  );
}

function Row({ item }: { item: Transition }) {
  const look = statusStyleOf(health, item.to_state);
  return (
    <li className="grid grid-cols-[1rem_minmax(0,1fr)_auto] items-baseline gap-x-2 border-line border-t py-1.5 text-sm first:border-t-0">
      <Glyph name={look.glyph} tone={look.tone} size={11} />
      <div className="min-w-0">
        <p>
          <span className="font-medium">{look.label}</span>
          <span className="text-ink-3">
            {" "}
            after {statusStyleOf(health, item.from_state).label.toLowerCase()} ·{" "}
            {item.actor || statusStyleOf(owner, item.owner).label}
          </span>
        </p>
        {item.reason && <p className="text-ink-2 text-xs leading-4">{readable(item.reason)}</p>}
      </div>
      <span className="text-right text-ink-3 text-xs">
        <Clock at={item.time} />
        {item.incident && (
          <Link
            to="/incidents/$id"
            params={{ id: item.incident }}
            className="block text-accent hover:underline"
          >
            incident
          </Link>
        )}
      </span>
    </li>
  );
}
