/** The heatmap with its signal, its legend, and the value under the cursor. */
import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import type { Signal } from "@/api/types";
import { families, inFamilies, signalTitle } from "@/features/signals/families";
import { plural, signalLabel } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { dateTime, serverNow } from "@/lib/time";
import { Age } from "@/ui/age";
import { Empty, ErrorNotice, StaleStrip } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { Picker, type PickerOption } from "@/ui/picker";
import { Skeleton } from "@/ui/skeleton";
import { HistoryBar, type HistoryProps } from "./history-bar";
import { MapBody, type MapChoice } from "./map-body";
import { findingsOf, groupingOf, mapModel, slotsOf } from "./map-model";
import { MapView, type MapViewProps } from "./map-view";
import { fleetJobsQuery, layoutQuery, signalsQuery, snapshotQuery } from "./queries";

interface Props extends HistoryProps, MapViewProps, MapChoice {
  signal: string | undefined;
  onSignal: (signal: string) => void;
  /** Names to show, or null for all. */
  keep: Set<string> | null;
}

/** The signals of the heatmap. Ports have no cells, so their signals are not offered. */
function signalOptions(signals: readonly Signal[] = []): PickerOption[] {
  const onWall = signals.filter((s) => s.source === "host" || s.source === "gpu");
  return [
    { value: "state", label: "State", group: "Life cycle" },
    ...inFamilies(onWall).flatMap(({ id, signals: members }) =>
      members.map((signal) => ({
        value: signal.name,
        label: signalTitle(signal, onWall),
        group: families[id].label,
        about: signal.about,
      })),
    ),
  ];
}

export function FleetMap(props: Props) {
  const {
    signal: asked,
    onSignal,
    keep,
    at,
    onAt,
    range,
    onRange,
    group,
    onGroup,
    zoom,
    onZoom,
    ...choice
  } = props;
  const signals = useQuery(signalsQuery());
  const wanted = at === undefined ? asked : undefined; // only states have a past
  const layout = useQuery(layoutQuery());
  const signal = signals.data?.find((s) => s.name === wanted) ?? null;
  const polling = usePolling(4_000, 4_000);
  const snapshot = useQuery({
    ...snapshotQuery(wanted ?? "state", at),
    refetchInterval: at === undefined && polling,
    // While the handle moves, the last map stays.
    placeholderData: (last) => (at !== undefined && last?.past ? last : undefined),
    staleTime: at === undefined ? undefined : Number.POSITIVE_INFINITY,
  });
  const shown = snapshot.data?.past ? snapshot.data.time : null;
  const since = snapshot.data?.historySince;
  const jobs = useQuery({ ...fleetJobsQuery(), enabled: group === "job", refetchInterval: polling });
  const slots = useMemo(
    () =>
      group === "rack" || !layout.data
        ? layout.data?.slots
        : slotsOf(layout.data.columns, groupingOf(layout.data.columns, group, jobs.data)),
    [layout.data, group, jobs.data],
  );
  const model = useMemo(
    () => slots && mapModel(slots, signal?.source ?? "all", keep ? (n) => keep.has(n) : undefined),
    [slots, signal, keep],
  );
  const findings = useMemo(
    () => model && findingsOf(model, snapshot.data?.findings, layout.data?.columns.version),
    [model, snapshot.data?.findings, layout.data],
  );
  const options = useMemo(() => signalOptions(signals.data), [signals.data]);
  const title = signal ? signalLabel(signal.name) : "State";
  return (
    <Panel
      title={shown === null ? "Map" : `Fleet at ${dateTime(shown)}`}
      about={model && `${plural(model.slots.length, "device")} on ${plural(model.nodes.length, "node")}`}
      aside={
        <>
          {snapshot.data?.time != null && (
            <span className="text-ink-3 text-xs">
              as of <Age at={snapshot.data.time} />
            </span>
          )}
          {at === undefined ? (
            <Picker
              label="Signal"
              value={wanted ?? "state"}
              onChange={onSignal}
              options={options}
              placeholder="Throttle, NVLink, temperature…"
            />
          ) : (
            <span className="text-ink-3 text-xs">Only states have a past</span>
          )}
        </>
      }
    >
      <HistoryBar at={at} onAt={onAt} range={range} onRange={onRange} />
      <MapView group={group} onGroup={onGroup} zoom={zoom} onZoom={onZoom} />
      {shown !== null && since != null && (shown < since || shown > serverNow()) && (
        <p role="status" className="mb-3 text-ink-2 text-sm">
          {shown < since
            ? `No history is kept from before ${dateTime(since)}. The states of that time are unknown.`
            : "This time is in the future. Its states are unknown."}
        </p>
      )}
      {snapshot.isError && snapshot.data && (
        <div className="mb-3">
          <StaleStrip since={snapshot.dataUpdatedAt / 1000} error={snapshot.error} />
        </div>
      )}
      {(layout.isError || (snapshot.isError && !snapshot.data)) && !(layout.data && snapshot.data) ? (
        <ErrorNotice
          error={layout.error ?? snapshot.error}
          onRetry={() => void Promise.all([layout.refetch(), snapshot.refetch()])}
        />
      ) : !model || !findings || !snapshot.data ? (
        <Skeleton className="h-40" />
      ) : model.slots.length === 0 ? (
        <NothingToDraw any={(layout.data?.slots.length ?? 0) > 0} title={title} filtered={keep !== null} />
      ) : (
        <MapBody
          model={model}
          findings={findings}
          snapshot={snapshot.data}
          signal={signal}
          title={title}
          group={group}
          zoom={zoom}
          {...choice}
        />
      )}
    </Panel>
  );
}

function NothingToDraw({ any, title, filtered }: { any: boolean; title: string; filtered: boolean }) {
  if (!any) return <Empty title="No devices yet.">Enrolled nodes appear here with their devices.</Empty>;
  if (filtered) return <Empty title="No matching nodes." />;
  return <Empty title="No devices with this signal.">{title} exists only on GPUs.</Empty>;
}
