import { describe, expect, it } from "vitest";
import type { Device } from "@/api/types";
import { deviceGroups, deviceName, factsOf, hardwareOf, namesOf } from "./device-labels";

const device = (change: Partial<Device>): Device => ({
  id: "gpu0",
  node: "a",
  index: 0,
  kind: "gpu",
  model: "NVIDIA H100",
  serial: null,
  uuid: null,
  memory_bytes: null,
  facts: {},
  previous_node: null,
  present: true,
  ...change,
});

it("identifies hardware by its serial, else by its UUID", () => {
  expect(hardwareOf(device({ serial: "165", uuid: "GPU-1" }))).toBe("165");
  expect(hardwareOf(device({ uuid: "GPU-1" }))).toBe("GPU-1");
  expect(hardwareOf(device({}))).toBeNull();
});

it("names a port by its adapter and number", () => {
  expect(deviceName("nic:mlx5_0:1")).toBe("mlx5_0 port 1");
  expect(deviceName("gpu3")).toBe("gpu3");
});

it("names a GPU by its index if known, else by the end of its UUID", () => {
  const uuid = "GPU-5c2f7a10-0000-0000-0000-00000000c0de";
  expect(deviceName(uuid)).toBe("GPU …00c0de");
  const names = namesOf([device({ id: uuid, index: 3 }), device({ id: "nic:mlx5_0:1", kind: "nic" })]);
  expect([uuid, "nic:mlx5_0:1", "gpu7"].map(names)).toEqual(["gpu3", "mlx5_0 port 1", "gpu7"]);
});

describe("deviceGroups", () => {
  it("puts GPUs before ports and omits the host", () => {
    const list = [
      device({ kind: "nic" }),
      device({ kind: "host" }),
      device({}),
      device({ kind: "nvswitch" }),
    ];
    expect(deviceGroups(list).map((group) => group.label)).toEqual(["GPUs", "Ports", "Nvswitch"]);
  });
});

it("lists only known facts", () => {
  const facts = factsOf(
    device({ serial: "165", facts: { driver_version: "580.12", pci_bus_id: "0000:1B" } }),
  );
  expect(facts).toEqual([
    { name: "Serial", value: "165" },
    { name: "Driver version", value: "580.12" },
    { name: "PCI bus id", value: "0000:1B" },
  ]);
});
