/** Names of devices, and the key of a device across nodes. */
import type { Device } from "@/api/types";
import { bytes, humanize } from "@/lib/format";

/** Return the key that stays with the hardware when it moves: its serial number, else its UUID. */
export const hardwareOf = (device: Pick<Device, "serial" | "uuid">): string | null =>
  device.serial ?? device.uuid;

const PORT = /^nic:(.+):(\d+)$/;
const UUID = /^(GPU|MIG)-[0-9a-f-]*?([0-9a-f]{6})$/i;

/** Return the name of a device: `nic:mlx5_0:1` is "mlx5_0 port 1", a UUID is shortened to its end. */
export function deviceName(id: string): string {
  const port = PORT.exec(id);
  if (port) return `${port[1]} port ${port[2]}`;
  const uuid = UUID.exec(id);
  return uuid ? `${uuid[1]} …${uuid[2]}` : id;
}

/** Return the name of a device of a known node: a GPU with a UUID is named by its index. */
export function nameOf(device: Pick<Device, "id" | "index" | "kind">): string {
  return device.kind === "gpu" && UUID.test(device.id) ? `gpu${device.index}` : deviceName(device.id);
}

export function namesOf(devices: readonly Pick<Device, "id" | "index" | "kind">[]): (id: string) => string {
  const names = new Map(devices.map((device) => [device.id, nameOf(device)]));
  return (id) => names.get(id) ?? deviceName(id);
}

export const shortModel = (model: string) => model.replace(/^NVIDIA /, "");

export interface DeviceGroup {
  kind: string;
  label: string;
  devices: Device[];
}

const LABELS: Record<string, string> = { gpu: "GPUs", nic: "Ports" };

/** Group devices: GPUs, ports, others. The host is part of the node's identity. */
export function deviceGroups(devices: readonly Device[]): DeviceGroup[] {
  const kinds = [...new Set(devices.map((device) => device.kind))].filter((kind) => kind !== "host");
  const place = (kind: string) => (kind === "gpu" ? 0 : kind === "nic" ? 1 : 2);
  return kinds
    .sort((a, b) => place(a) - place(b) || a.localeCompare(b))
    .map((kind) => ({
      kind,
      label: LABELS[kind] ?? humanize(kind),
      devices: devices
        .filter((device) => device.kind === kind)
        .sort((a, b) => a.index - b.index || a.id.localeCompare(b.id)),
    }));
}

/** Return the facts of a device, common ones first. */
export function factsOf(device: Device): { name: string; value: string }[] {
  const known = [
    { name: "Memory", value: device.memory_bytes === null ? "" : bytes(device.memory_bytes) },
    { name: "Serial", value: device.serial ?? "" },
    { name: "UUID", value: device.uuid ?? "" },
    { name: "Previous node", value: device.previous_node ?? "" },
  ].filter((fact) => fact.value !== "");
  return [
    ...known,
    ...Object.entries(device.facts).map(([name, value]) => ({ name: humanize(name), value: String(value) })),
  ];
}
