import { describe, expect, it } from "vitest";
import type { FleetEvent, Node, Signal } from "@/api/types";
import {
  chartFamilies,
  eventMarks,
  openFamilies,
  rangeFor,
  refreshInterval,
  toggledFamilies,
} from "./chart-model";

const signal = (name: string, source: string, unit = "1", kind = "gauge"): Signal => ({
  name,
  source,
  unit,
  kind,
  about: "",
});
const all = [
  signal("cpu_utilization_ratio", "host"),
  signal("gpu_power_watts", "gpu"),
  signal("gpu_throttle_reasons", "gpu"),
  signal("nic_link_up", "nic"),
];
const devices = (...kinds: string[]) => kinds.map((kind) => ({ kind })) as Node["devices"];

describe("families of charts", () => {
  it("match the devices of the node, without signals that a line cannot show", () => {
    expect(chartFamilies(all, devices("host")).map((f) => f.id)).toEqual(["host"]);
    const full = chartFamilies(all, devices("host", "gpu", "nic"));
    expect(full.map((f) => f.id)).toEqual(["heat", "host", "port_traffic"]);
    expect(full.flatMap((f) => f.signals.map((s) => s.name))).not.toContain("gpu_throttle_reasons");
  });

  it("open by the devices of the node, or by the URL", () => {
    const full = chartFamilies(all, devices("host", "gpu", "nic"));
    expect([...openFamilies(undefined, full)]).toEqual(["heat"]);
    expect([...openFamilies(undefined, chartFamilies(all, devices("host")))]).toEqual(["host"]);
    expect([...openFamilies("host,nonsense", full)]).toEqual(["host"]);
    expect(openFamilies("none", full).size).toBe(0);
  });

  it("toggle in the URL", () => {
    expect(toggledFamilies(new Set(["heat"]), "pcie")).toBe("heat,pcie");
    expect(toggledFamilies(new Set(["heat"]), "heat")).toBe("none");
  });
});

it("draws throttled time as a ratio", () => {
  expect(rangeFor(signal("gpu_throttle_thermal_nanoseconds_total", "gpu", "ns", "counter"))).toEqual([
    0, 1e9,
  ]);
  expect(rangeFor(signal("cpu_utilization_ratio", "host"))).toEqual([0, 1]);
  expect(rangeFor(signal("gpu_power_watts", "gpu", "W"))).toBeUndefined();
});

it("marks faults, not requested exits", () => {
  const event = (kind: string, data = {}) => ({ kind, time: 1, data }) as FleetEvent;
  expect(eventMarks([event("xid"), event("process_exit", { expected: true }), event("job_started")])).toEqual(
    [{ x: 1, tone: "quarantined", label: "xid" }],
  );
});

describe("a live chart", () => {
  it("is read again once a point changes, at least each minute", () => {
    expect([300, 3600, 86_400, 2_592_000].map(refreshInterval)).toEqual([4_000, 12_000, 60_000, 60_000]);
  });
});
