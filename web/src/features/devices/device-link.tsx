import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { deviceName, hardwareOf, nameOf } from "./device-labels";
import { deviceAtQuery } from "./queries";

/** A link to the page of the device at a position of a node. */
export function DeviceLink({ node, device }: { node: string; device: string }) {
  const { data: found } = useQuery({ ...deviceAtQuery(node, device), enabled: device !== "host" });
  const key = found && hardwareOf(found);
  const name = found ? nameOf(found) : deviceName(device);
  if (!key) return <span>{name}</span>;
  return (
    <Link
      to="/devices/$device"
      params={{ device: key }}
      search={{}}
      title={`Facts and history of ${key}`}
      className="font-medium text-accent hover:underline"
    >
      {name}
    </Link>
  );
}
