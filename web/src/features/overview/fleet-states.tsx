import { Link } from "@tanstack/react-router";
import type { HealthState } from "@/api/types";
import { cx } from "@/lib/cx";
import { integer } from "@/lib/format";
import { health, healthUrgency, type Tone } from "@/lib/status-styles";
import { Glyph } from "@/ui/glyph";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";

const fill: Record<Tone, string> = {
  healthy: "bg-healthy",
  suspect: "bg-suspect",
  draining: "bg-draining",
  quarantined: "bg-quarantined bar-stripes",
  validating: "bg-validating",
  unknown: "diagonal",
};

/** The fleet as one bar; every part links to a filtered view. */
export function FleetStates({ nodes, devices }: { nodes: Record<string, number>; devices: number }) {
  const present = healthUrgency.filter((state) => (nodes[state] ?? 0) > 0);
  return (
    <Panel
      title="Fleet"
      about={`${integer(devices)} devices`}
      aside={
        <Link to="/fleet" search={{}} className="text-accent text-sm hover:underline">
          Map
        </Link>
      }
    >
      {present.length === 0 ? (
        <Empty title="No nodes enrolled.">
          Create a join token with <code className="font-mono text-xs">mainstay token</code>, then start{" "}
          <code className="font-mono text-xs">mainstay node</code> on the node.
        </Empty>
      ) : (
        <>
          <div className="flex h-3 gap-0.5 overflow-hidden rounded" aria-hidden="true">
            {present.map((state) => (
              <span
                key={state}
                className={cx("min-w-1.5", fill[health[state].tone])}
                style={{ flexGrow: nodes[state], flexBasis: 0 }}
              />
            ))}
          </div>
          <ul className="mt-2.5 flex flex-wrap gap-x-5 gap-y-1.5 text-sm">
            {present.map((state: HealthState) => (
              <li key={state}>
                <Link
                  to="/fleet"
                  search={{ state }}
                  title={health[state].about}
                  className="inline-flex items-center gap-1.5 text-ink-2 hover:text-ink hover:underline"
                >
                  <Glyph name={health[state].glyph} tone={health[state].tone} size={11} />
                  <span className="num font-semibold text-ink">{integer(nodes[state])}</span>
                  {health[state].label.toLowerCase()}
                </Link>
              </li>
            ))}
          </ul>
        </>
      )}
    </Panel>
  );
}
