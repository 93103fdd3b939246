import { Link } from "@tanstack/react-router";
import { deviceName } from "@/features/devices/device-labels";

/** The node and device that reported an error code. */
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
