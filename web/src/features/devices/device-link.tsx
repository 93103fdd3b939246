import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { nodeQuery } from "@/features/nodes/queries";
import { deviceName, hardwareOf, nameOf } from "./device-words";

/** The way from a place to what sits in it: only the hardware has a history, so it is looked up by its node. */
export function DeviceLink({ node, device }: { node: string; device: string }) {
  const query = useQuery({ ...nodeQuery(node), enabled: device !== "host" });
  const found = query.data?.devices.find((candidate) => candidate.id === device);
  const key = found && hardwareOf(found);
  const name = found ? nameOf(found) : deviceName(device);
  if (!key) return <span>{name}</span>;
  return (
    <Link
      to="/devices/$device"
      params={{ device: key }}
      search={{}}
      title={`Everything known about ${key}`}
      className="font-medium text-accent hover:underline"
    >
      {name}
    </Link>
  );
}
