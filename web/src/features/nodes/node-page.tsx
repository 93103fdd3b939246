/** One node: identity, measurements, events, validations. */
import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { useState } from "react";
import type { Node } from "@/api/types";
import { summaryOf, titleOf } from "@/features/incidents/lifecycle-model";
import { recentIncidentsQuery } from "@/features/incidents/queries";
import { Proposals } from "@/features/remediation/proposals";
import { Silenced } from "@/features/silences/silenced";
import { RunValidation } from "@/features/validation/run-validation";
import { cx } from "@/lib/cx";
import { usePolling } from "@/lib/live";
import { health, severity, statusStyleOf } from "@/lib/status-styles";
import { Age } from "@/ui/age";
import { Button } from "@/ui/button";
import { CopyMenu, curl } from "@/ui/copy";
import { Glyph } from "@/ui/glyph";
import { ErrorNotice, StaleStrip } from "@/ui/notice";
import { Page } from "@/ui/page";
import { SkeletonRows } from "@/ui/skeleton";
import { StatePill } from "@/ui/state-pill";
import { Devices } from "./devices";
import { Identity } from "./identity";
import { NodeLifecycle } from "./lifecycle";
import { NodeCharts } from "./node-charts";
import { NodeEvents } from "./node-events";
import { NodeValidations } from "./node-validations";
import { nodeQuery } from "./queries";

const route = getRouteApi("/shell/nodes/$name");

export function NodePage() {
  const { name } = route.useParams();
  const query = useQuery({ ...nodeQuery(name), refetchInterval: usePolling(10_000) });
  const node = query.data;
  const [running, setRunning] = useState(false);
  return (
    <Page
      title={name}
      crumb={
        <Link to="/fleet" search={{}} className="hover:underline">
          Fleet
        </Link>
      }
      mark={node && <StatePill look={statusStyleOf(health, node.state)} />}
      meta={node && <Meta node={node} />}
      actions={
        <>
          <CopyMenu
            commands={[
              curl(`/v1/nodes/${encodeURIComponent(name)}`),
              { label: "CLI, on the node", text: "mainstay validate --suite quick" },
            ]}
          />
          <Button icon="play" disabled={!node} onClick={() => setRunning(true)}>
            Run validation
          </Button>
        </>
      }
    >
      {query.isError &&
        (node ? (
          <StaleStrip
            since={query.dataUpdatedAt / 1000}
            error={query.error}
            onRetry={() => void query.refetch()}
          />
        ) : (
          <ErrorNotice error={query.error} onRetry={() => void query.refetch()} />
        ))}
      {query.isPending && <SkeletonRows rows={8} />}
      {node && (
        <>
          {node.open_incidents > 0 && <OpenIncidents node={name} />}
          <Silenced about={{ node: name }} />
          <Proposals node={name} />
          <NodeLifecycle node={node} />
          <div className="grid items-start gap-4 xl:grid-cols-[minmax(0,1fr)_22rem]">
            <NodeCharts node={node} />
            <div className="flex flex-col gap-4">
              <Identity node={node} />
              <Devices devices={node.devices} />
              <NodeValidations node={name} onRun={() => setRunning(true)} />
            </div>
          </div>
          <NodeEvents node={name} />
        </>
      )}
      <RunValidation open={running} onOpenChange={setRunning} node={name} />
    </Page>
  );
}

function Meta({ node }: { node: Node }) {
  return (
    <>
      <span>
        last report <Age at={node.last_seen_at} />
      </span>
      {node.jobs.map((job) => (
        <span key={job}>
          runs{" "}
          <Link
            to="/jobs/$id"
            params={{ id: job }}
            search={{}}
            className="font-medium text-accent hover:underline"
          >
            {job}
          </Link>
        </span>
      ))}
    </>
  );
}

function OpenIncidents({ node }: { node: string }) {
  const incidents = useQuery(recentIncidentsQuery({ node }));
  const open = incidents.data?.filter((incident) => incident.closed_at === null) ?? [];
  return open.map((incident) => {
    const look = statusStyleOf(severity, incident.severity);
    return (
      <p
        key={incident.id}
        className={cx(
          "flex items-center gap-x-2.5 rounded-md px-3 py-2 text-sm max-md:flex-wrap",
          look.tone === "quarantined" ? "bg-quarantined-soft" : "bg-suspect-soft",
        )}
      >
        <Glyph name={look.glyph} tone={look.tone} />
        <Link
          to="/incidents/$id"
          params={{ id: incident.id }}
          className="font-medium text-ink hover:underline md:shrink-0"
        >
          {titleOf(incident)}
        </Link>
        <span className="min-w-0 flex-1 truncate text-ink-2 max-md:basis-full max-md:whitespace-normal">
          {summaryOf(incident)}
        </span>
        <span className="text-ink-3 text-xs">
          <Age at={incident.opened_at} />
        </span>
      </p>
    );
  });
}
