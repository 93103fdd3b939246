import { Link } from "@tanstack/react-router";
import { deviceName } from "@/features/devices/device-words";

/** Where an error code was reported: the node, which leads to its page, and the device. */
export function Place({ node, device }: { node: string; device: string | null }) {
  return (
    <span className="whitespace-nowrap">
      <Link
        to="/nodes/$name"
        params={{ name: node }}
        search={{}}
        className="font-medium hover:underline"
        tabIndex={-1}
      >
        {node}
      </Link>
      {device && <span className="text-ink-3"> {deviceName(device)}</span>}
    </span>
  );
}
