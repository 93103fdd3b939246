import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import type { Job } from "@/api/types";
import { bytes, duration } from "@/lib/format";
import { rank as rankLooks, statusStyleOf } from "@/lib/status-styles";
import { Button } from "@/ui/button";
import { Facts } from "@/ui/facts";
import { Panel } from "@/ui/panel";
import { StatePill } from "@/ui/state-pill";
import { rankFacts } from "./job-model";
import { stepsQuery } from "./queries";

const route = getRouteApi("/shell/jobs/$id");
export const ratio = (value: number) => `${value.toFixed(2)} ×`;

/** One rank: where it runs and how its step time compares. */
export function RankDetail({ job, rank }: { job: Job; rank: number }) {
  const navigate = route.useNavigate();
  const steps = useQuery(stepsQuery(job.id));
  const place = job.topology.ranks.find((r) => r.rank === rank);
  const facts = rankFacts(job, steps.data, rank);
  return (
    <Panel
      title={`Rank ${rank}`}
      aside={
        <>
          {/* A job that ended has no running ranks, even if the last report listed some. */}
          {place && job.finished_at === null && (
            <StatePill look={statusStyleOf(rankLooks, place.state)} quiet />
          )}
          <Button
            kind="ghost"
            icon="close"
            aria-label="Close rank"
            onClick={() => void navigate({ search: (old) => ({ ...old, rank: undefined }), replace: true })}
          />
        </>
      }
    >
      {!place ? (
        <p className="text-ink-2 text-sm">This generation does not have this rank.</p>
      ) : (
        <Facts
          facts={[
            {
              name: "Node",
              value: (
                <Link
                  to="/nodes/$name"
                  params={{ name: place.node }}
                  search={{}}
                  className="font-medium text-accent hover:underline"
                >
                  {place.node}
                </Link>
              ),
            },
            { name: "Device", value: place.device ?? "host" },
            { name: "Process", value: place.pid ?? "–" },
            {
              name: "Mesh position",
              value: `replica ${place.dp}, stage ${place.pp}${job.topology.tp > 1 ? `, shard ${place.tp}` : ""}`,
            },
            {
              name: "Step",
              value: (
                <>
                  {duration(facts?.step)} <Muted>typically {duration(facts?.typicalStep)}</Muted>
                </>
              ),
            },
            {
              name: "Compute",
              value: (
                <>
                  {duration(facts?.compute)} <Muted>typically {duration(facts?.typicalCompute)}</Muted>
                </>
              ),
            },
            {
              name: "Peers",
              value: facts?.vsPeers == null ? "no peers" : `${ratio(facts.vsPeers)} their median`,
            },
            { name: "State", value: bytes(job.protection.state_bytes[rank]) },
          ]}
        />
      )}
    </Panel>
  );
}

function Muted({ children }: { children: React.ReactNode }) {
  return <span className="text-ink-3 text-xs">{children}</span>;
}
