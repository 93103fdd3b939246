/** Charts by family with one crosshair and one window; dragging over a chart zooms all of them. */
import { useQuery } from "@tanstack/react-query";
import { getRouteApi } from "@tanstack/react-router";
import { useMemo } from "react";
import type { Node } from "@/api/types";
import { deviceGroups, nameOf } from "@/features/devices/device-labels";
import { signalsQuery } from "@/features/fleet/queries";
import { serverNow, when } from "@/lib/time";
import { Button } from "@/ui/button";
import { ErrorNotice } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { Segmented } from "@/ui/segmented";
import { Select } from "@/ui/select";
import { ChartFamily, ChartsLoading } from "./chart-family";
import { chartFamilies, eventMarks, openFamilies, toggledFamilies } from "./chart-model";
import { nodeEventsQuery } from "./queries";
import { type NodeSearch, type SpanName, spanSeconds, spans } from "./search";

const route = getRouteApi("/shell/nodes/$name");

export function NodeCharts({ node }: { node: Node }) {
  const { span = "5m", from, to, device, charts } = route.useSearch();
  const navigate = route.useNavigate();
  const signals = useQuery(signalsQuery());
  const events = useQuery(nodeEventsQuery(node.name));
  const families = useMemo(
    () => chartFamilies(signals.data ?? [], node.devices),
    [signals.data, node.devices],
  );
  const open = openFamilies(charts, families);
  const fixed = from !== undefined && to !== undefined;
  const marks = useMemo(() => eventMarks(events.data?.items), [events.data]);
  const set = (change: NodeSearch) =>
    void navigate({ search: (old) => ({ ...old, ...change }), replace: true, resetScroll: false });
  const window = fixed ? { span: to - from, from, to } : { span: spanSeconds[span] };

  return (
    <Panel
      title="Measurements"
      about={
        fixed ? `${when(from, serverNow())} to ${when(to, serverNow())}` : "drag over a chart to zoom in"
      }
      aside={
        <>
          <DeviceChoice node={node} device={device} onChange={(next) => set({ device: next })} />
          {fixed && (
            <Button icon="reset" onClick={() => set({ from: undefined, to: undefined })}>
              Show live data
            </Button>
          )}
          <Segmented
            label="Time span"
            value={fixed ? ("" as SpanName) : span}
            onChange={(value) => set({ span: value, from: undefined, to: undefined })}
            options={spans.map((value) => ({ value, label: value }))}
          />
        </>
      }
    >
      {signals.isPending && <ChartsLoading />}
      {signals.isError && !signals.data && (
        <ErrorNotice error={signals.error} onRetry={() => void signals.refetch()} />
      )}
      {families.map((family) => (
        <ChartFamily
          key={family.id}
          family={family}
          node={node}
          device={device}
          window={window}
          marks={marks}
          open={open.has(family.id)}
          onToggle={() => set({ charts: toggledFamilies(open, family.id) })}
          onZoom={(a, b) => set({ from: Math.floor(a), to: Math.ceil(b) })}
        />
      ))}
    </Panel>
  );
}

interface ChoiceProps {
  node: Node;
  device: string | undefined;
  onChange: (device: string | undefined) => void;
}

/** The filter by GPU or port, if there are several. */
function DeviceChoice({ node, device, onChange }: ChoiceProps) {
  const of = (kind: string, label: string) => ({
    label,
    options: (deviceGroups(node.devices).find((group) => group.kind === kind)?.devices ?? []).map((d) => ({
      value: d.id,
      label: nameOf(d),
    })),
  });
  const groups = [of("gpu", "GPUs"), of("nic", "Ports")].filter((group) => group.options.length > 0);
  if (groups.reduce((sum, group) => sum + group.options.length, 0) < 2) return null;
  return (
    <Select
      label="Device"
      value={device ?? "all"}
      onChange={(value) => onChange(value === "all" ? undefined : value)}
      groups={[{ options: [{ value: "all", label: "All devices" }] }, ...groups]}
    />
  );
}
