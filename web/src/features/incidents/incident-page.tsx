/** An incident: its history, evidence, plan, and actions. */
import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { Fragment, useState } from "react";
import type { IncidentDetail } from "@/api/types";
import { DeviceLink } from "@/features/devices/device-link";
import { Deliveries } from "@/features/notifications/deliveries";
import { PostMortemMenu } from "@/features/post-mortems/share";
import { IncidentProposals } from "@/features/remediation/proposals";
import { Silenced } from "@/features/silences/silenced";
import { humanize, shortId } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { incident as looks, severity, statusStyleOf } from "@/lib/status-styles";
import { Age } from "@/ui/age";
import { Button } from "@/ui/button";
import { CopyMenu, CopyText, curl } from "@/ui/copy";
import { Glyph } from "@/ui/glyph";
import { ErrorNotice, StaleStrip } from "@/ui/notice";
import { Page } from "@/ui/page";
import { Panel } from "@/ui/panel";
import { SkeletonRows } from "@/ui/skeleton";
import { StatePill } from "@/ui/state-pill";
import { Actions } from "./actions";
import { AssignDialog, CommentDialog } from "./assign-dialog";
import { causeLabel } from "./cause";
import { Evidence } from "./evidence";
import { LifecycleBar } from "./lifecycle-bar";
import { ranksText, summaryOf, titleOf } from "./lifecycle-model";
import { PlanView } from "./plan-view";
import { incidentQuery } from "./queries";
import { ReasonDialog, type Transition } from "./reason-dialog";
import { RecommendedActionLine } from "./recommended-action";
import { Stacks } from "./stacks";
import { Timeline } from "./timeline";

const route = getRouteApi("/shell/incidents/$id");

export function IncidentPage() {
  const { id } = route.useParams();
  const query = useQuery({ ...incidentQuery(id), refetchInterval: usePolling(10_000, 4_000) });
  const [transition, setTransition] = useState<Transition | null>(null);
  const [dialog, setDialog] = useState<"assign" | "comment" | null>(null);
  const incident = query.data;
  const open = incident && incident.state !== "closed";
  return (
    <Page
      title={incident ? titleOf(incident) : "Incident"}
      crumb={
        <Link to="/incidents" search={{}} className="hover:underline">
          Incidents
        </Link>
      }
      mark={
        incident && (
          <>
            <StatePill look={statusStyleOf(severity, incident.severity)} />
            <StatePill look={statusStyleOf(looks, incident.state)} />
            {incident.needs_operator && (
              <span className="inline-flex items-center gap-1.5 font-medium text-draining text-xs">
                <Glyph name="down" size={10} /> needs an operator
              </span>
            )}
          </>
        )
      }
      meta={incident && <Meta incident={incident} />}
      actions={
        <>
          <CopyMenu
            commands={[
              curl(`/v1/incidents/${id}`),
              { ...curl(`/v1/incidents/${id}:close`, { reason: "…" }), label: "curl to close" },
            ]}
          />
          {incident && <PostMortemMenu incident={id} />}
          <Button onClick={() => setDialog("comment")} disabled={!incident}>
            Comment
          </Button>
          {open && (
            <Button onClick={() => setDialog("assign")}>{incident.assignee ? "Hand over" : "Assign"}</Button>
          )}
          {open && incident.acknowledged_at === null && (
            <Button onClick={() => setTransition("acknowledge")}>Acknowledge</Button>
          )}
          {open && <Button onClick={() => setTransition("close")}>Close</Button>}
        </>
      }
    >
      {query.isError &&
        (incident ? (
          <StaleStrip
            since={query.dataUpdatedAt / 1000}
            error={query.error}
            onRetry={() => void query.refetch()}
          />
        ) : (
          <ErrorNotice error={query.error} onRetry={() => void query.refetch()} />
        ))}
      {query.isPending && <SkeletonRows rows={8} />}
      {incident && <Body incident={incident} />}
      {incident && dialog === "assign" && (
        <AssignDialog incident={incident} onClose={() => setDialog(null)} />
      )}
      {incident && dialog === "comment" && (
        <CommentDialog incident={incident} onClose={() => setDialog(null)} />
      )}
      {transition && <ReasonDialog id={id} transition={transition} onClose={() => setTransition(null)} />}
    </Page>
  );
}

function Body({ incident }: { incident: IncidentDetail }) {
  return (
    <>
      {incident.state !== "closed" && <Silenced about={{ incident: incident.id }} />}
      <section aria-label="Life cycle" className="rounded-lg border border-line bg-surface px-5 py-4">
        {summaryOf(incident) && <p className="mb-4 max-w-4xl text-ink">{summaryOf(incident)}</p>}
        <ImpactLines incident={incident} />
        <CauseLine incident={incident} />
        <RecommendedActionLine findings={incident.findings} />
        <LifecycleBar incident={incident} />
      </section>
      <div className="grid items-start gap-4 xl:grid-cols-[minmax(0,5fr)_minmax(0,7fr)]">
        <Timeline incident={incident} />
        <div className="flex min-w-0 flex-col gap-4">
          <IncidentProposals incident={incident.id} node={incident.node} />
          <Evidence incident={incident} />
          {incident.job && <Stacks incident={incident} />}
          {(incident.job || incident.plan) && <PlanView plan={incident.plan} incident={incident} />}
          {(incident.job || incident.actions.length > 0) && <Actions actions={incident.actions} />}
          <Panel title="Messages" about="about this incident" flush>
            <Deliveries filter={{ incident: incident.id }} empty="No message was sent." />
          </Panel>
        </div>
      </div>
    </>
  );
}

function ImpactLines({ incident }: { incident: IncidentDetail }) {
  const lines = [
    ["Impact", incident.impact || (incident.state === "closed" ? "" : "No job is known to be affected")],
    ["Where", incident.where],
    ["Next", incident.next_step],
  ];
  return (
    <dl className="mb-3 grid grid-cols-[auto_minmax(0,1fr)] gap-x-3 gap-y-1 text-sm">
      {lines
        .filter(([, text]) => text)
        .map(([label, text]) => (
          <Fragment key={label}>
            <dt className="text-ink-3">{label}</dt>
            <dd className="break-words">{text}</dd>
          </Fragment>
        ))}
    </dl>
  );
}

function CauseLine({ incident }: { incident: IncidentDetail }) {
  if (!incident.cause) return null;
  const words = causeLabel(incident.cause);
  return (
    <p className="mb-2 text-sm">
      <span className="text-ink-3">Cause: </span>
      <b className="font-semibold">{words.label}</b>
      {words.about && <span className="text-ink-3"> · {words.about}</span>}
    </p>
  );
}

function Meta({ incident }: { incident: IncidentDetail }) {
  return (
    <>
      <span>{incident.kinds.map(humanize).join(", ")}</span>
      {incident.job && (
        <Link
          to="/jobs/$id"
          params={{ id: incident.job }}
          search={{}}
          className="font-medium text-accent hover:underline"
        >
          {incident.job}
        </Link>
      )}
      {incident.ranks.length > 0 && <span className="num">{ranksText(incident.ranks)}</span>}
      {incident.node && (
        <Link
          to="/nodes/$name"
          params={{ name: incident.node }}
          search={{}}
          className="font-medium text-accent hover:underline"
        >
          {incident.node}
        </Link>
      )}
      {incident.node && incident.device && incident.device !== "host" && (
        <DeviceLink node={incident.node} device={incident.device} />
      )}
      <span className="text-ink-3">
        opened <Age at={incident.opened_at} />
      </span>
      <Link
        to="/fleet"
        search={{ at: incident.opened_at }}
        className="font-medium text-accent hover:underline"
      >
        Fleet at this time
      </Link>
      {incident.acknowledged_at !== null && (
        <span className="text-ink-3">
          acknowledged by {incident.acknowledged_by} <Age at={incident.acknowledged_at} />
        </span>
      )}
      {incident.assignee && <span>assigned to {incident.assignee}</span>}
      <CopyText text={incident.id} shown={shortId(incident.id)} />
    </>
  );
}
