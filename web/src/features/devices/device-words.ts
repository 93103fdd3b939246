/** Names of devices as people say them, and the key under which a device is known wherever it sits. Pure. */
import type { Device } from "@/api/types";
import { bytes, humanize } from "@/lib/format";

/** What stays with the hardware when it moves: its serial number, else its UUID. */
export const hardwareOf = (device: Pick<Device, "serial" | "uuid">): string | null =>
  device.serial ?? device.uuid;

const PORT = /^nic:(.+):(\d+)$/;
const UUID = /^(GPU|MIG)-[0-9a-f-]*?([0-9a-f]{6})$/i;

/** `nic:mlx5_0:1` reads "mlx5_0 port 1", a UUID is cut to its end; everything else is called what it is called. */
export function deviceName(id: string): string {
  const port = PORT.exec(id);
  if (port) return `${port[1]} port ${port[2]}`;
  const uuid = UUID.exec(id);
  return uuid ? `${uuid[1]} …${uuid[2]}` : id;
}

/** The same where the node is known: a GPU that is known by its UUID is called by its place. */
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

/** GPUs first, then ports, then what came later; the host stands in the node's own identity. */
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

/** What is known about a device, with what every device has first. */
export function factsOf(device: Device): { name: string; value: string }[] {
  const known = [
    { name: "Memory", value: device.memory_bytes === null ? "" : bytes(device.memory_bytes) },
    { name: "Serial", value: device.serial ?? "" },
    { name: "UUID", value: device.uuid ?? "" },
    { name: "Moved from", value: device.moved_from ?? "" },
  ].filter((fact) => fact.value !== "");
  return [
    ...known,
    ...Object.entries(device.facts).map(([name, value]) => ({ name: humanize(name), value: String(value) })),
  ];
}
