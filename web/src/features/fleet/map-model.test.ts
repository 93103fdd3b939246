import { describe, expect, it } from "vitest";
import type { FleetJobs, Signal } from "@/api/types";
import { healthOrder } from "@/lib/status-styles";
import {
  byteValue,
  cellText,
  findingsOf,
  findingText,
  groupingOf,
  type MapGroup,
  mapModel,
  type Slot,
  slotsOf,
  stateOf,
  statePatterns,
} from "./map-model";

const slots: Slot[] = [
  { slot: 0, node: "a", rack: "", group: "", device: "host", kind: "host" },
  { slot: 1, node: "a", rack: "", group: "", device: "gpu0", kind: "gpu" },
  { slot: 2, node: "a", rack: "", group: "", device: "gpu1", kind: "gpu" },
  { slot: 3, node: "b", rack: "", group: "", device: "host", kind: "host" },
];
const power: Signal = { name: "gpu_power_watts", unit: "W", kind: "gauge", source: "gpu", about: "" };

it("expands the columns of a layout rack by rack; bytes keep the order of the layout", () => {
  const shapes = [["host", "gpu0"], ["host"]];
  const racks = ["r10", "r9"];
  expect(slotsOf({ nodes: ["a", "b", "c"], shape_of: [1, 0, 1], shapes, racks, rack_of: [0, 1, 0] })).toEqual(
    [
      { slot: 1, node: "b", rack: "r9", group: "r9", device: "host", kind: "host" },
      { slot: 2, node: "b", rack: "r9", group: "r9", device: "gpu0", kind: "gpu" },
      { slot: 0, node: "a", rack: "r10", group: "r10", device: "host", kind: "host" },
      { slot: 3, node: "c", rack: "r10", group: "r10", device: "host", kind: "host" },
    ],
  );
});

it("groups nodes by what they share, and keeps their racks", () => {
  const layout = {
    version: "1",
    nodes: ["a", "b", "c"],
    shapes: [["host"]],
    shape_of: [0, 0, 0],
    racks: ["r1"],
    rack_of: [0, 0, 0],
    switches: ["leaf-2", ""],
    switch_of: [0, 1, 0],
    power_domains: [""],
    power_domain_of: [0, 0, 0],
    cohorts: ["h100"],
    cohort_of: [0, 0, 0],
  };
  const drawn = (by: MapGroup, jobs?: FleetJobs) =>
    slotsOf(layout, groupingOf(layout, by, jobs)).map((slot) => `${slot.node} ${slot.group} ${slot.rack}`);
  expect(drawn("switch")).toEqual(["b  r1", "a leaf-2 r1", "c leaf-2 r1"]);
  expect(drawn("job", { layout: "1", jobs: ["", "j"], job_of: [1, 0, 1] })).toEqual([
    "b  r1",
    "a j r1",
    "c j r1",
  ]);
  expect(drawn("job", { layout: "0", jobs: ["j"], job_of: [0] })).toEqual(["a  r1", "b  r1", "c  r1"]);
});

describe("mapModel", () => {
  it("draws only what can have the signal", () => {
    expect(mapModel(slots, "gpu").slots.map((s) => s.device)).toEqual(["gpu0", "gpu1"]);
    expect(mapModel(slots, "host").slots.map((s) => s.node)).toEqual(["a", "b"]);
  });

  it("shows the state of a node on its GPUs, or on the host if it has none", () => {
    const model = mapModel(slots, "all");
    expect([...model.bytes]).toEqual([1, 2, 3]);
    expect(model.nodes).toEqual([
      { name: "a", first: 0, count: 2, rack: "" },
      { name: "b", first: 2, count: 1, rack: "" },
    ]);
  });

  it("filters by node", () => {
    expect(mapModel(slots, "all", (name) => name === "b").slots).toHaveLength(1);
  });
});

describe("findings about devices", () => {
  const found = {
    layout: "1",
    slots: [2, 0, 9],
    severities: ["warning" as const, "critical" as const, "critical" as const],
    kinds: ["power_brake", "xid", "xid"],
  };

  it("are on the cell of their device and on no other", () => {
    const model = mapModel(slots, "all");
    expect([...findingsOf(model, found, "1")]).toEqual([[1, { severity: "warning", kind: "power_brake" }]]);
    expect(model.slots[1]?.device).toBe("gpu1");
    expect(
      findingsOf(
        mapModel(slots, "all", (name) => name === "b"),
        found,
        "1",
      ).size,
    ).toBe(0);
  });

  it("are nowhere if the cells are of another layout", () => {
    const model = mapModel(slots, "all");
    expect(findingsOf(model, found, "2").size).toBe(0);
    expect(findingsOf(model, null, "1").size).toBe(0);
  });

  it("are named with severity and kind", () => {
    expect(findingText({ severity: "critical", kind: "ecc_errors" })).toMatch(
      /^Critical finding: E.+ errors$/,
    );
  });
});

describe("bytes", () => {
  it("become values again, and 255 never does", () => {
    expect(byteValue(0, 40, 90)).toBe(40);
    expect(byteValue(250, 40, 90)).toBe(90);
    expect(byteValue(255, 40, 90)).toBeNull();
    expect(byteValue(undefined, 40, 90)).toBeNull();
  });

  it("are states by the order of the enumeration; anything else is unknown", () => {
    expect(healthOrder.map((_, byte) => stateOf(byte))).toEqual(healthOrder);
    expect(stateOf(200)).toBe("unknown");
    expect(new Set(Object.values(statePatterns)).size).toBe(healthOrder.length);
  });

  it("are formatted as text", () => {
    expect(cellText(1, null, { low: null, high: null })).toBe("Healthy");
    expect(cellText(255, null, { low: null, high: null })).toBe("Unknown");
    expect(cellText(250, power, { low: 0, high: 700 })).toBe("700 W");
    expect(cellText(255, power, { low: 0, high: 700 })).toBe("no data");
  });
});
