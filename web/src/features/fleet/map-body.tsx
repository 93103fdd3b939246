/** The cells of the map with the legend and the value under the cursor. */
import { useNavigate } from "@tanstack/react-router";
import { useCallback, useMemo, useState } from "react";
import type { HealthState, Signal } from "@/api/types";
import { useDark } from "@/app/theme";
import { pack, scaleColor, tokenRgb } from "@/charts/color";
import { HeatMap, type SelectMode } from "@/charts/heat-map";
import type { CellMark, Marks } from "@/charts/heat-marks";
import { type Ink, NO_DATA } from "@/charts/heat-paint";
import { deviceName } from "@/features/devices/device-labels";
import { plural } from "@/lib/format";
import { health, severity } from "@/lib/status-styles";
import { MapLegend } from "./map-legend";
import {
  cellText,
  type DeviceFinding,
  FULL_SCALE,
  findingSeverities,
  findingText,
  type MapGroup,
  type MapHighlight,
  type MapZoom,
  mapGroups,
  type mapModel,
  stateOf,
  statePatterns,
} from "./map-model";
import type { Snapshot } from "./queries";

/** What an operator chose on the map. */
export interface MapChoice {
  highlight: MapHighlight | undefined;
  onHighlight: (value: MapHighlight | undefined) => void;
  selected: ReadonlySet<string>;
  onSelect: (names: string[], mode: SelectMode) => void;
}

const DIM = 45; // of 255
const MAP_HEIGHT = 460;

/** Map a byte to the color of a state or value in the current theme; other states than `highlight` are pale. */
function useInks(signal: Signal | null, highlight: MapHighlight | undefined): (byte: number) => Ink {
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

/** The signs of devices with a finding; what is not of `highlight` is pale. */
function useMarks({ findings, model, snapshot, highlight }: Props): Marks {
  const dark = useDark();
  // biome-ignore lint/correctness/useExhaustiveDependencies: the theme changes the tokens
  return useMemo(() => {
    const marks = new Map<number, CellMark>();
    for (const [cell, { severity: level }] of findings) {
      const state = stateOf(snapshot.values[model.bytes[cell] ?? -1] ?? NO_DATA);
      const alpha = !highlight || highlight === level || highlight === state ? 255 : DIM;
      marks.set(cell, {
        sign: level === "critical" ? "bang" : "triangle",
        color: pack(tokenRgb(severity[level].tone), alpha),
        edge: pack(tokenRgb("ink"), alpha),
      });
    }
    return marks;
  }, [findings, model, snapshot, highlight, dark]);
}

interface Props extends MapChoice {
  model: ReturnType<typeof mapModel>;
  /** By index of the cell. */
  findings: ReadonlyMap<number, DeviceFinding>;
  snapshot: Snapshot;
  signal: Signal | null;
  title: string;
  group: MapGroup;
  zoom: MapZoom;
}

export function MapBody(props: Props) {
  const {
    model,
    findings,
    snapshot,
    signal,
    title,
    group,
    zoom,
    highlight,
    onHighlight,
    selected,
    onSelect,
  } = props;
  const navigate = useNavigate();
  const inks = useInks(signal, highlight);
  const marks = useMarks(props);
  const color = pack(tokenRgb("ink"));
  const selection = useMemo(() => ({ selected, onSelect, color }), [selected, onSelect, color]);
  const [cursor, setCursor] = useState<number | null>(null);
  const at = cursor === null ? null : (model.slots[cursor] ?? null);
  const found = cursor === null ? undefined : findings.get(cursor);
  const describe = useCallback(
    (index: number) => {
      const slot = model.slots[index];
      if (!slot) return "";
      const text = cellText(snapshot.values[slot.slot], signal, snapshot);
      const finding = findings.get(index);
      return `${slot.node}, ${deviceName(slot.device)}: ${text}${finding ? `. ${findingText(finding)}` : ""}`;
    },
    [model, findings, snapshot, signal],
  );
  const counts = useMemo(() => {
    const found = new Map<MapHighlight, number>();
    if (!signal) {
      for (const slot of model.slots) {
        const byte = snapshot.values[slot.slot] ?? NO_DATA;
        const state = byte === NO_DATA ? "unknown" : stateOf(byte);
        found.set(state, (found.get(state) ?? 0) + 1);
      }
      for (const level of findingSeverities) {
        found.set(level, [...findings.values()].filter((finding) => finding.severity === level).length);
      }
    }
    return found;
  }, [model, findings, snapshot, signal]);
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
                {group !== "rack" && at.group && `${at.group} · `}
                {at.node} · {deviceName(at.device)}{" "}
              </span>
              <b className="font-semibold text-ink">{cellText(snapshot.values[at.slot], signal, snapshot)}</b>
              {found && ` · ${findingText(found)}`}
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
        marks={marks}
        label={`${title} of ${plural(model.slots.length, "device")}`}
        read={(index) => cellText(snapshot.values[model.slots[index]?.slot ?? -1], signal, snapshot)}
        describe={describe}
        cursor={at ? cursor : null}
        onCursor={setCursor}
        selection={selection}
        groups={group}
        noGroup={mapGroups[group].none}
        maxHeight={MAP_HEIGHT * Number.parseInt(zoom, 10) ** 2}
        onOpen={(index) => {
          const slot = model.slots[index];
          if (slot) void navigate({ to: "/nodes/$name", params: { name: slot.node }, search: {} });
        }}
      />
    </>
  );
}
