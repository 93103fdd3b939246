import { describe, expect, it } from "vitest";
import type { Device } from "@/api/types";
import { deviceGroups, deviceName, factsOf, hardwareOf, namesOf } from "./device-words";

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
  moved_from: null,
  present: true,
  ...change,
});

it("knows hardware by its serial, else by its UUID, else not at all", () => {
  expect(hardwareOf(device({ serial: "165", uuid: "GPU-1" }))).toBe("165");
  expect(hardwareOf(device({ uuid: "GPU-1" }))).toBe("GPU-1");
  expect(hardwareOf(device({}))).toBeNull();
});

it("calls a port by its card and number", () => {
  expect(deviceName("nic:mlx5_0:1")).toBe("mlx5_0 port 1");
  expect(deviceName("gpu3")).toBe("gpu3");
});

it("calls a GPU by its place where that is known, and by the end of its UUID where not", () => {
  const uuid = "GPU-5c2f7a10-0000-0000-0000-00000000c0de";
  expect(deviceName(uuid)).toBe("GPU …00c0de");
  const names = namesOf([device({ id: uuid, index: 3 }), device({ id: "nic:mlx5_0:1", kind: "nic" })]);
  expect([uuid, "nic:mlx5_0:1", "gpu7"].map(names)).toEqual(["gpu3", "mlx5_0 port 1", "gpu7"]);
});

describe("deviceGroups", () => {
  it("puts GPUs before ports and leaves the host out", () => {
    const list = [
      device({ kind: "nic" }),
      device({ kind: "host" }),
      device({}),
      device({ kind: "nvswitch" }),
    ];
    expect(deviceGroups(list).map((group) => group.label)).toEqual(["GPUs", "Ports", "Nvswitch"]);
  });
});

it("lists what is known and nothing that is not", () => {
  const facts = factsOf(
    device({ serial: "165", facts: { driver_version: "580.12", pci_bus_id: "0000:1B" } }),
  );
  expect(facts).toEqual([
    { name: "Serial", value: "165" },
    { name: "Driver version", value: "580.12" },
    { name: "PCI bus id", value: "0000:1B" },
  ]);
});
