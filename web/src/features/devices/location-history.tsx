import { Link } from "@tanstack/react-router";
import type { DeviceDetail } from "@/api/types";
import { plural } from "@/lib/format";
import { useNow, when } from "@/lib/time";
import { Glyph } from "@/ui/glyph";
import { Panel } from "@/ui/panel";

/** The nodes of a device, newest first. A fault that moves with the device is in the device, not in the node. */
export function LocationHistory({ locations }: { locations: DeviceDetail["locations"] }) {
  const now = useNow();
  const sorted = [...locations].sort((a, b) => b.last_seen_at - a.last_seen_at);
  return (
    <Panel title="Location history" about={plural(locations.length, "node")} flush>
      <ol>
        {sorted.map((home) => (
          <li
            key={`${home.node}${home.first_seen_at}`}
            className="grid grid-cols-[1rem_minmax(0,1fr)] gap-x-2 border-line border-t px-4 py-2 text-sm"
          >
            <span className="mt-1">
              <Glyph
                name={home.present ? "dot" : "ring"}
                tone={home.present ? "healthy" : "unknown"}
                size={11}
              />
            </span>
            <div className="min-w-0">
              <Link
                to="/nodes/$name"
                params={{ name: home.node }}
                search={{}}
                className="font-medium hover:underline"
              >
                {home.node}
              </Link>
              <span className="text-ink-3"> {home.present ? "current node" : "sat there"}</span>
              <p className="num text-ink-3 text-xs">
                {when(home.first_seen_at, now)} to {home.present ? "now" : when(home.last_seen_at, now)}
              </p>
            </div>
          </li>
        ))}
      </ol>
    </Panel>
  );
}
