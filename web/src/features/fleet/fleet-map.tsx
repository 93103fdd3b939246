/** The heatmap with its signal, its legend, and the value under the cursor. */
import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useCallback, useMemo, useState } from "react";
import type { HealthState, Signal } from "@/api/types";
import { useDark } from "@/app/theme";
import { pack, scaleColor, tokenRgb } from "@/charts/color";
import { HeatMap, type SelectMode } from "@/charts/heat-map";
import { type Ink, NO_DATA } from "@/charts/heat-paint";
import { deviceName } from "@/features/devices/device-labels";
import { families, inFamilies, signalTitle } from "@/features/signals/families";
import { plural, signalLabel } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { health, healthOrder } from "@/lib/status-styles";
import { Age } from "@/ui/age";
import { Empty, ErrorNotice, StaleStrip } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { Picker, type PickerOption } from "@/ui/picker";
import { Skeleton } from "@/ui/skeleton";
import { MapLegend } from "./map-legend";
import { cellText, FULL_SCALE, mapModel, stateOf, statePatterns } from "./map-model";
import { layoutQuery, type Snapshot, signalsQuery, snapshotQuery } from "./queries";

interface Props {
  signal: string | undefined;
  onSignal: (signal: string) => void;
  /** Names to show, or null for all. */
  keep: Set<string> | null;
  highlight: HealthState | undefined;
  onHighlight: (state: HealthState | undefined) => void;
  selected: ReadonlySet<string>;
  onSelect: (names: string[], mode: SelectMode) => void;
}

type Choice = Pick<Props, "highlight" | "onHighlight" | "selected" | "onSelect">;
const DIM = 45; // of 255

/** Map a byte to the color of a state or value in the current theme; other states than `highlight` are pale. */
function useInks(signal: Signal | null, highlight: HealthState | undefined): (byte: number) => Ink {
  const dark = useDark();
  return useMemo(() => {
    const alpha = (state: HealthState) => (signal || !highlight || state === highlight ? 255 : DIM);
    const unknown: Ink = { color: pack(tokenRgb("unknown"), alpha("unknown")), pattern: "diagonal" };
    const table: Ink[] = Array.from({ length: 256 }, (_, byte): Ink => {
      if (byte === NO_DATA) return unknown;
      if (signal) return { color: pack(scaleColor(byte / FULL_SCALE, dark)), pattern: "solid" };
      const state = stateOf(byte);
      return { color: pack(tokenRgb(health[state].tone), alpha(state)), pattern: statePatterns[state] };
    });
    return (byte) => table[byte] ?? unknown;
  }, [signal, dark, highlight]);
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

export function FleetMap({ signal: wanted, onSignal, keep, ...choice }: Props) {
  const signals = useQuery(signalsQuery());
  const layout = useQuery(layoutQuery());
  const signal = signals.data?.find((s) => s.name === wanted) ?? null;
  const snapshot = useQuery({
    ...snapshotQuery(wanted ?? "state"),
    refetchInterval: usePolling(4_000, 4_000),
  });
  const model = useMemo(
    () =>
      layout.data &&
      mapModel(layout.data.slots, signal?.source ?? "all", keep ? (n) => keep.has(n) : undefined),
    [layout.data, signal, keep],
  );
  const options = useMemo(() => signalOptions(signals.data), [signals.data]);
  const title = signal ? signalLabel(signal.name) : "State";
  return (
    <Panel
      title="Map"
      about={model && `${plural(model.slots.length, "device")} on ${plural(model.nodes.length, "node")}`}
      aside={
        <>
          {snapshot.data?.time != null && (
            <span className="text-ink-3 text-xs">
              as of <Age at={snapshot.data.time} />
            </span>
          )}
          <Picker
            label="Signal"
            value={wanted ?? "state"}
            onChange={onSignal}
            options={options}
            placeholder="Throttle, NVLink, temperature…"
          />
        </>
      }
    >
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
      ) : !model || !snapshot.data ? (
        <Skeleton className="h-40" />
      ) : model.slots.length === 0 ? (
        <NothingToDraw any={(layout.data?.slots.length ?? 0) > 0} title={title} filtered={keep !== null} />
      ) : (
        <MapBody model={model} snapshot={snapshot.data} signal={signal} title={title} {...choice} />
      )}
    </Panel>
  );
}

function NothingToDraw({ any, title, filtered }: { any: boolean; title: string; filtered: boolean }) {
  if (!any) return <Empty title="No devices yet.">Enrolled nodes appear here with their devices.</Empty>;
  if (filtered) return <Empty title="No matching nodes." />;
  return <Empty title="No devices with this signal.">{title} exists only on GPUs.</Empty>;
}

interface BodyProps extends Choice {
  model: ReturnType<typeof mapModel>;
  snapshot: Snapshot;
  signal: Signal | null;
  title: string;
}

function MapBody({ model, snapshot, signal, title, highlight, onHighlight, selected, onSelect }: BodyProps) {
  const navigate = useNavigate();
  const inks = useInks(signal, highlight);
  const color = pack(tokenRgb("ink"));
  const selection = useMemo(() => ({ selected, onSelect, color }), [selected, onSelect, color]);
  const [cursor, setCursor] = useState<number | null>(null);
  const at = cursor === null ? null : (model.slots[cursor] ?? null);
  const describe = useCallback(
    (index: number) => {
      const slot = model.slots[index];
      if (!slot) return "";
      return `${slot.node}, ${deviceName(slot.device)}: ${cellText(snapshot.values[slot.slot], signal, snapshot)}`;
    },
    [model, snapshot, signal],
  );
  const counts = useMemo(() => {
    const found = new Map(healthOrder.map((state) => [state, 0]));
    if (!signal) {
      for (const slot of model.slots) {
        const byte = snapshot.values[slot.slot] ?? NO_DATA;
        const state = byte === NO_DATA ? "unknown" : stateOf(byte);
        found.set(state, (found.get(state) ?? 0) + 1);
      }
    }
    return found;
  }, [model, snapshot, signal]);
  return (
    <>
      <div className="mb-3 flex min-h-6 flex-wrap items-center justify-between gap-x-6 gap-y-1">
        <MapLegend
          signal={signal}
          snapshot={snapshot}
          counts={counts}
          highlight={highlight}
          onHighlight={onHighlight}
        />
        <p className="num text-ink-2 text-sm">
          {at ? (
            <>
              <span className="text-ink-3">
                {at.rack && `${at.rack} · `}
                {at.node} · {deviceName(at.device)}{" "}
              </span>
              <b className="font-semibold text-ink">{cellText(snapshot.values[at.slot], signal, snapshot)}</b>
            </>
          ) : (
            <span className="text-ink-3 text-xs">Drag to select nodes, or use the arrow keys</span>
          )}
        </p>
      </div>
      <HeatMap
        nodes={model.nodes}
        slots={model.bytes}
        values={snapshot.values}
        inks={inks}
        label={`${title} of ${plural(model.slots.length, "device")}`}
        read={(index) => cellText(snapshot.values[model.slots[index]?.slot ?? -1], signal, snapshot)}
        describe={describe}
        cursor={at ? cursor : null}
        onCursor={setCursor}
        selection={selection}
        onOpen={(index) => {
          const slot = model.slots[index];
          if (slot) void navigate({ to: "/nodes/$name", params: { name: slot.node }, search: {} });
        }}
      />
    </>
  );
}
