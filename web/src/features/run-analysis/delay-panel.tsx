import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import type { Job } from "@/api/types";
import { plural } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { Segmented } from "@/ui/segmented";
import { Skeleton } from "@/ui/skeleton";
import { DelayMatrixView } from "./delay-matrix";
import { byNode, type Measure, MOST_BY_RANK, type Pair, pairsOf, slowEnds, slowest } from "./delays-model";
import { PAIR_STEPS, pairsQuery } from "./queries";
import { SlowPairs } from "./slow-pairs";
import type { JobPairs } from "./types";

const measures: { value: Measure; label: string; title: string }[] = [
  {
    value: "alike",
    label: "Relative",
    title: "Divided by the median of pairs that transfer about as many bytes",
  },
  { value: "seconds", label: "Seconds", title: "Median transfer time" },
];

/** Transfer times: senders by receivers, medians over the last steps, ranks of a node adjacent. */
export function DelayPanel({ job }: { job: Job }) {
  const many = job.topology.world_size > MOST_BY_RANK;
  const query = useQuery({
    ...pairsQuery(job.id),
    refetchInterval: usePolling(many ? 20_000 : 8_000, 8_000),
  });
  const [by, setBy] = useState<Measure>("alike");
  const [grain, setGrain] = useState<"rank" | "node">();
  const data = query.data;
  const nodes = new Set(job.topology.ranks.map((place) => place.node)).size;
  const large = (data?.ranks.length ?? 0) > MOST_BY_RANK;
  const chosen = grain ?? (large ? "node" : "rank");
  const about =
    data && data.first !== null && data.last !== null
      ? `median of steps ${data.first} to ${data.last}`
      : `medians of the last ${PAIR_STEPS} steps`;
  return (
    <Panel
      title="Transfers between ranks"
      about={about}
      aside={
        <>
          {nodes > 1 && (
            <Segmented
              label="Rows"
              value={chosen}
              onChange={setGrain}
              options={[
                { value: "rank", label: "Ranks" },
                { value: "node", label: "Nodes" },
              ]}
            />
          )}
          <Segmented label="Color by" value={by} onChange={setBy} options={measures} />
        </>
      }
    >
      <QueryView query={query} loading={<Skeleton className="h-72" />}>
        {(pairs) => <Answer job={job} data={pairs} by={by} grain={chosen} />}
      </QueryView>
    </Panel>
  );
}

interface AnswerProps {
  job: Job;
  data: JobPairs;
  by: Measure;
  grain: "rank" | "node";
}

function Answer({ job, data, by, grain }: AnswerProps) {
  const pairs = useMemo(() => pairsOf(data), [data]);
  const order = useMemo(
    () => byNode(data.ranks, new Map(job.topology.ranks.map((place) => [place.rank, place.node]))),
    [data.ranks, job.topology],
  );
  if (pairs.length === 0) {
    return (
      <Empty title="No measured transfers.">
        Point-to-point calls of the training SDK are timed by their receivers; collectives are not split by
        pair.
      </Empty>
    );
  }
  const left = job.topology.world_size - data.ranks.length;
  return (
    <div className="grid items-start gap-x-8 gap-y-4 xl:grid-cols-[minmax(0,1fr)_minmax(24rem,28rem)]">
      <DelayMatrixView pairs={pairs} ranks={data.ranks} order={order} by={by} grain={grain} />
      <div className="min-w-0">
        <SlowPairs pairs={slowest(pairs)} />
        <Ends pairs={pairs} />
        {left > 0 && (
          <p className="mt-2 text-ink-3 text-xs">
            The ranks of the slowest transfers, without {plural(left, "other rank")}.
          </p>
        )}
      </div>
    </div>
  );
}

/** A slow row or column as text. */
function Ends({ pairs }: { pairs: Pair[] }) {
  const ends = useMemo(() => slowEnds(pairs), [pairs]);
  if (ends.length === 0) return null;
  return (
    <p className="mt-2 text-ink-2 text-sm">
      {ends
        .slice(0, 3)
        .map(
          (end) =>
            `All ${end.of} transfers that rank ${end.rank} ${end.as === "sender" ? "sends" : "receives"} are slow.`,
        )
        .join(" ")}
    </p>
  );
}
