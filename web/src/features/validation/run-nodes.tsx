import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useMemo, useState } from "react";
import type { Sweep, SweepRun, Validation } from "@/api/types";
import { age, integer } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { useNow } from "@/lib/time";
import { Button } from "@/ui/button";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { Segmented } from "@/ui/segmented";
import { SkeletonRows } from "@/ui/skeleton";
import { CancelValidation } from "./cancel-dialog";
import { heldText, runOrder, settled } from "./labels";
import { MOST_OF_RUN, runQuery } from "./queries";
import { ValidationProgress, ValidationProgressBar } from "./validation-progress";

const shows = [
  { value: "all", label: "All" },
  { value: "outliers", label: "Outliers", title: "Failed, warned or unknown" },
  { value: "pending", label: "Pending", title: "Not ended yet" },
] as const;
type Show = (typeof shows)[number]["value"];

const wanted: Record<Show, (v: Validation) => boolean> = {
  all: () => true,
  outliers: (v) => settled(v) && v.verdict !== "pass",
  pending: (v) => !settled(v),
};

/** The number of rows shown at first. */
const FIRST_ROWS = 100;

export function RunNodes({ sweep, run }: { sweep: Sweep; run: SweepRun }) {
  const polling = usePolling(10_000, 3_000);
  const query = useQuery({
    ...runQuery(run.id),
    refetchInterval: run.finished_at === null ? polling : false,
  });
  const [show, setShow] = useState<Show>("all");
  const [all, setAll] = useState(false);
  const items = useMemo(
    () => query.data?.items.filter(wanted[show]).sort(runOrder) ?? [],
    [query.data, show],
  );
  return (
    <Panel
      title="Nodes"
      about={query.data?.more ? `the newest ${integer(MOST_OF_RUN)}, outliers first` : "outliers first"}
      flush
      aside={<Segmented label="Show" value={show} onChange={setShow} options={shows} />}
    >
      <QueryView query={query} loading={<SkeletonRows className="px-4 pb-4" />}>
        {(data) => (
          <>
            {items.length === 0 && (
              <div className="px-4 pb-3">
                <Empty title={emptyText(data.items.length, show)} />
              </div>
            )}
            <ul aria-label="Nodes of the run">
              {items.slice(0, all ? undefined : FIRST_ROWS).map((v) => (
                <NodeRow key={v.id} validation={v} sweep={sweep} />
              ))}
            </ul>
            {!all && items.length > FIRST_ROWS && (
              <div className="border-line border-t px-4 py-3">
                <Button onClick={() => setAll(true)}>Show all {integer(items.length)}</Button>
              </div>
            )}
          </>
        )}
      </QueryView>
    </Panel>
  );
}

function emptyText(count: number, show: Show): string {
  if (count === 0) return "No node has its task yet.";
  return show === "pending" ? "Every node has ended." : "No outliers among the nodes that have ended.";
}

function NodeRow({ validation, sweep }: { validation: Validation; sweep: Sweep }) {
  const forOthers = validation.held && validation.reason.startsWith("waiting");
  const why = forOthers ? `${validation.reason}: ${heldText(sweep)}` : validation.reason;
  return (
    <li className="grid min-h-11 grid-cols-[11rem_minmax(8rem,16rem)_minmax(0,1fr)_6.5rem_5.5rem] items-center gap-x-4 gap-y-1 border-line border-t px-4 py-1.5 text-sm max-lg:grid-cols-[minmax(0,1fr)_auto]">
      <Link
        to="/validation/$id"
        params={{ id: validation.id }}
        className="truncate font-medium text-ink hover:underline"
      >
        {validation.node}
      </Link>
      <div className="flex min-w-0 flex-col gap-1 max-lg:items-end">
        <ValidationProgress validation={validation} />
        <ValidationProgressBar validation={validation} />
      </div>
      <span className="min-w-0 text-ink-2 text-xs max-lg:col-span-2">
        {why}
        {validation.attempt > 1 && <span className="text-ink-3"> Attempt {validation.attempt}.</span>}
      </span>
      <Took validation={validation} />
      <span className="justify-self-end">
        <CancelValidation validation={validation} />
      </span>
    </li>
  );
}

function Took({ validation }: { validation: Validation }) {
  const now = useNow();
  const { started_at, finished_at } = validation;
  if (started_at === null) return <span />;
  return (
    <span className="num whitespace-nowrap text-ink-3 text-xs lg:text-right">
      {finished_at === null ? `for ${age(now - started_at)}` : `took ${age(finished_at - started_at)}`}
    </span>
  );
}
