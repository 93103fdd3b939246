/** A cohort before and after an update or a time: which caused a slowdown, the update or a device? */
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import type { DeviceShift, UpdateComparison, UpdateShift } from "@/api/types";
import { plural, quantity, signalLabel } from "@/lib/format";
import { statusStyleOf, verdict } from "@/lib/status-styles";
import { Button } from "@/ui/button";
import { CopyMenu, curl } from "@/ui/copy";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { SkeletonRows } from "@/ui/skeleton";
import { StatePill } from "@/ui/state-pill";
import { ChangeRow } from "./change-row";
import { blameText, changeText, headline, intervalText, lastUpdate, type Standout, standouts } from "./model";
import { comparisonQuery, measuredCohortsQuery, type Sides } from "./queries";
import { ChooseSides } from "./run-selection";

interface Props {
  sides: Partial<Sides>;
  onSides: (sides: Sides) => void;
}

export function Comparison({ sides, onSides }: Props) {
  const cohorts = useQuery(measuredCohortsQuery());
  return (
    <QueryView query={cohorts} loading={<SkeletonRows />}>
      {(known) => {
        const { before, after, node, at } = sides;
        const chosen = before && after ? { before, after, node, at } : lastUpdate(known);
        if (known.length === 0)
          return (
            <Panel title="Before and after">
              <Empty title="No measurements yet.">
                Run a suite on the nodes before an update and again after it.
              </Empty>
            </Panel>
          );
        return (
          <>
            <ChooseSides key={JSON.stringify(chosen)} known={known} chosen={chosen} onSides={onSides} />
            {chosen && <Compared sides={chosen} />}
          </>
        );
      }}
    </QueryView>
  );
}

function Compared({ sides }: { sides: Sides }) {
  const query = useQuery(comparisonQuery(sides));
  return (
    <QueryView query={query} loading={<SkeletonRows />}>
      {(reported) => (
        <>
          <ComparisonSummary reported={reported} sides={sides} />
          <Metrics reported={reported} />
        </>
      )}
    </QueryView>
  );
}

function ComparisonSummary({ reported, sides }: { reported: UpdateComparison; sides: Sides }) {
  const found = standouts(reported.metrics);
  const query = new URLSearchParams(
    Object.entries(sides).flatMap(([name, value]) => (value === undefined ? [] : [[name, String(value)]])),
  );
  return (
    <Panel
      title="Result"
      about={`${plural(reported.nodes_before, "node")} before, ${reported.nodes_after} after`}
      aside={
        <>
          <StatePill look={statusStyleOf(verdict, reported.verdict)} />
          <CopyMenu commands={[curl(`/v1/cohort-comparisons?${query.toString()}`)]} />
        </>
      }
    >
      <p className="max-w-4xl font-medium text-ink text-sm">{headline(reported)}</p>
      {found.length > 0 && (
        <ul aria-label="Devices that stand out" className="mt-2 flex flex-col gap-1 text-sm">
          {found.slice(0, 12).map((one) => (
            <Stands key={`${one.node}/${one.device}`} one={one} />
          ))}
        </ul>
      )}
      {found.length > 12 && (
        <p className="mt-1 text-ink-3 text-xs">and {plural(found.length - 12, "more device")}</p>
      )}
    </Panel>
  );
}

function Stands({ one }: { one: Standout }) {
  return (
    <li className="flex flex-wrap items-baseline gap-x-3">
      <NodeLink node={one.node} device={one.device} />
      <span className="text-ink-2 text-xs">
        {one.of
          .slice(0, 3)
          .map((of) => `${signalLabel(of.metric)} ${changeText(of.worse)}`)
          .join(", ")}
        {one.of.length > 3 && `, and ${plural(one.of.length - 3, "more metric")}`}
      </span>
    </li>
  );
}

function NodeLink({ node, device }: { node: string; device: string }) {
  return (
    <Link to="/nodes/$name" params={{ name: node }} search={{}} className="font-medium hover:underline">
      {node} <span className="num font-normal text-ink-3 text-xs">{device}</span>
    </Link>
  );
}

/** The number of rows shown at first, worst first. */
const FIRST_ROWS = 40;

function Metrics({ reported }: { reported: UpdateComparison }) {
  const [all, setAll] = useState(false);
  return (
    <Panel title="Metrics" about="worst first; change of the median device with its interval" flush>
      <ul aria-label="Metrics before and after">
        {reported.metrics.slice(0, all ? undefined : FIRST_ROWS).map((one, i) => (
          <Row key={`${one.benchmark}/${one.metric}`} one={one} shown={i === 0 && one.verdict === "fail"} />
        ))}
      </ul>
      {!all && reported.metrics.length > FIRST_ROWS && (
        <div className="border-line border-t px-4 py-3">
          <Button onClick={() => setAll(true)}>Show all {reported.metrics.length}</Button>
        </div>
      )}
    </Panel>
  );
}

function Row({ one, shown }: { one: UpdateShift; shown: boolean }) {
  return (
    <ChangeRow
      benchmark={one.benchmark}
      metric={one.metric}
      unit={one.unit}
      verdict={one.verdict}
      change={changeText(one.worse)}
      sure={intervalText(one)}
      reason={
        <>
          {(one.blame === "devices" || one.blame === "both") && (
            <b className="font-medium text-ink">{blameText[one.blame]}. </b>
          )}
          {one.reason}
        </>
      }
      before={one.before}
      after={one.after}
      one="device"
      shown={shown}
    >
      <ul aria-label={`Devices at ${one.metric}`} className="flex flex-col">
        {one.devices.slice(0, 8).map((device) => (
          <DeviceLine key={`${device.node}/${device.device}`} device={device} unit={one.unit} />
        ))}
      </ul>
    </ChangeRow>
  );
}

const saidText: Record<DeviceShift["assessment"], string> = {
  slower: "stands out",
  explained: "explained by the update",
  unremarkable: "",
};

function DeviceLine({ device, unit }: { device: DeviceShift; unit: string }) {
  return (
    <li className="grid grid-cols-[minmax(0,14rem)_minmax(0,14rem)_8rem_minmax(0,1fr)] gap-x-4 py-0.5 text-xs max-md:grid-cols-[minmax(0,1fr)_auto]">
      <NodeLink node={device.node} device={device.device} />
      <span className="num text-ink-2 max-md:order-2">
        {quantity(device.before, unit)} → {quantity(device.after, unit)}
      </span>
      <span className="num max-md:order-1 max-md:text-right">
        {device.worse === null ? "new" : changeText(device.worse)}
      </span>
      <span className="text-ink-3 max-md:order-3 max-md:text-right">{saidText[device.assessment]}</span>
    </li>
  );
}
