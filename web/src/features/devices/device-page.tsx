/** One device: its facts, locations, and history. Its serial number identifies it in every node. */
import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import type { DeviceDetail } from "@/api/types";
import { plural } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { Age } from "@/ui/age";
import { CopyMenu, CopyText, curl } from "@/ui/copy";
import { Facts } from "@/ui/facts";
import { Glyph } from "@/ui/glyph";
import { ErrorNotice, StaleStrip } from "@/ui/notice";
import { Page } from "@/ui/page";
import { Panel } from "@/ui/panel";
import { SkeletonRows } from "@/ui/skeleton";
import { DeviceHistory } from "./device-history";
import { factsOf, hardwareOf, nameOf, shortModel } from "./device-labels";
import { LocationHistory } from "./location-history";
import { deviceQuery } from "./queries";

const route = getRouteApi("/shell/devices/$device");

export function DevicePage() {
  const { device: key } = route.useParams();
  const query = useQuery({ ...deviceQuery(key), refetchInterval: usePolling(20_000) });
  const detail = query.data;
  const path = `/v1/devices/${encodeURIComponent(key)}`;
  return (
    <Page
      title={detail ? `${shortModel(detail.device.model)} ${key}` : key}
      crumb={
        <Link to="/fleet" search={{}} className="hover:underline">
          Fleet
        </Link>
      }
      mark={detail && <ValidationProgress detail={detail} />}
      meta={detail && <Meta detail={detail} />}
      actions={<CopyMenu commands={[curl(path), { ...curl(`${path}/history`), label: "curl history" }]} />}
    >
      {query.isError &&
        (detail ? (
          <StaleStrip
            since={query.dataUpdatedAt / 1000}
            error={query.error}
            onRetry={() => void query.refetch()}
          />
        ) : (
          <ErrorNotice error={query.error} onRetry={() => void query.refetch()} />
        ))}
      {query.isPending && <SkeletonRows rows={8} />}
      {detail && (
        <div className="grid items-start gap-4 xl:grid-cols-[minmax(0,1fr)_24rem]">
          <DeviceHistory device={key} locations={detail.locations} />
          <div className="flex min-w-0 flex-col gap-4 max-xl:order-first">
            <LocationHistory locations={detail.locations} />
            <Panel title="Facts">
              <Facts facts={factsOf(detail.device).map((fact) => ({ ...fact, mono: true }))} />
            </Panel>
          </div>
        </div>
      )}
    </Page>
  );
}

function ValidationProgress({ detail }: { detail: DeviceDetail }) {
  const { findings_active: active } = detail;
  return (
    <span className="inline-flex items-center gap-1.5 font-medium text-xs">
      <Glyph name={active > 0 ? "bang" : "dot"} tone={active > 0 ? "quarantined" : "healthy"} size={11} />
      {active > 0 ? `${plural(active, "finding")} active` : "no active findings"}
    </span>
  );
}

function Meta({ detail }: { detail: DeviceDetail }) {
  const home = detail.locations.find((candidate) => candidate.present);
  return (
    <>
      {home ? (
        <span>
          {nameOf(detail.device)} of{" "}
          <Link
            to="/nodes/$name"
            params={{ name: home.node }}
            search={detail.device.kind === "host" ? {} : { device: detail.device.id }}
            className="font-medium text-accent hover:underline"
          >
            {home.node}
          </Link>
        </span>
      ) : (
        <span>not in a node now</span>
      )}
      <span>{plural(detail.findings_total, "finding")} in total</span>
      {detail.locations[0] && (
        <span>
          first seen <Age at={Math.min(...detail.locations.map((h) => h.first_seen_at))} />
        </span>
      )}
      {hardwareOf(detail.device) && <CopyText text={hardwareOf(detail.device) ?? ""} />}
    </>
  );
}
