import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { client, idempotencyKey, unwrap } from "@/api/client";
import type { Criterion, Suite } from "@/api/types";
import { age, humanize, plural, quantity } from "@/lib/format";
import { Age } from "@/ui/age";
import { Button } from "@/ui/button";
import { Empty, ErrorNotice } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { SkeletonRows } from "@/ui/skeleton";
import { type Column, columnsFor, DataTable } from "@/ui/table";
import { useToast } from "@/ui/toast";
import { criteriaQuery, suitesQuery, validationKeys } from "./queries";

export function Suites() {
  const suites = useQuery(suitesQuery());
  return (
    <div className="grid items-start gap-4 xl:grid-cols-[minmax(0,2fr)_minmax(0,3fr)]">
      <Panel title="Suites" flush>
        <QueryView query={suites} loading={<SkeletonRows className="px-4 pb-4" />}>
          {(list) => (
            <ul>
              {list.map((suite) => (
                <SuiteRow key={suite.name} suite={suite} />
              ))}
            </ul>
          )}
        </QueryView>
      </Panel>
      <Criteria />
    </div>
  );
}

function SuiteRow({ suite }: { suite: Suite }) {
  const metrics = suite.benchmarks.reduce((sum, benchmark) => sum + benchmark.metrics.length, 0);
  return (
    <li className="border-line border-t px-4 py-2.5 text-sm">
      <p className="flex items-baseline justify-between gap-4">
        <span className="font-medium">{humanize(suite.name)}</span>
        <span className="num text-ink-3 text-xs">about {age(suite.expected_seconds)}</span>
      </p>
      <p className="text-ink-2 text-xs">{suite.benchmarks.map((benchmark) => benchmark.name).join(", ")}</p>
      <details className="mt-1 text-xs">
        <summary className="w-max cursor-pointer text-ink-3 hover:text-ink">
          {plural(suite.benchmarks.length, "benchmark")}, {plural(metrics, "metric")}
        </summary>
        <dl className="mt-1.5 grid grid-cols-[max-content_minmax(0,1fr)] gap-x-4 gap-y-1 font-mono text-2xs">
          {suite.benchmarks.map((benchmark) => (
            <div key={benchmark.name} className="contents">
              <dt className="text-ink-2">{benchmark.name}</dt>
              <dd className="text-ink-3">{benchmark.metrics.map((metric) => metric.name).join(", ")}</dd>
            </div>
          ))}
        </dl>
      </details>
    </li>
  );
}

function band(criterion: Criterion, unit: string): string {
  const text = (v: number) => quantity(v, unit);
  if (criterion.low !== null && criterion.high !== null)
    return `${text(criterion.low)} … ${text(criterion.high)}`;
  if (criterion.low !== null) return `at least ${text(criterion.low)}`;
  if (criterion.high !== null) return `at most ${text(criterion.high)}`;
  return "none";
}

const column = columnsFor<Criterion>();
const columns: Column<Criterion>[] = column.columns([
  column.accessor("benchmark", {
    header: "Benchmark",
    cell: ({ row }) => <span className="font-mono text-xs">{row.original.benchmark}</span>,
  }),
  column.accessor("metric", { header: "Metric", cell: ({ row }) => humanize(row.original.metric) }),
  column.accessor("cohort", {
    header: "Cohort",
    cell: ({ row }) => <span className="text-ink-2">{row.original.cohort}</span>,
  }),
  column.accessor("low", {
    id: "band",
    header: "Accepted",
    cell: ({ row }) => band(row.original, row.original.unit),
  }),
  column.accessor("n", { header: "Samples" }),
  column.accessor("source", {
    header: "Source",
    cell: ({ row }) => (
      <span className="text-ink-2">
        {row.original.source}, <Age at={row.original.learned_at} />
      </span>
    ),
  }),
]) as Column<Criterion>[];

/** What a value must be to pass, per cohort, and where that knowledge comes from. */
function Criteria() {
  const query = useQuery(criteriaQuery());
  const queryClient = useQueryClient();
  const say = useToast();
  const learn = useMutation({
    mutationFn: () => unwrap(client.POST("/v1/criteria:learn", { body: {}, headers: idempotencyKey() })),
    onSuccess: () => {
      void queryClient.invalidateQueries({ queryKey: validationKeys.criteria });
      say("Criteria learned from stored results");
    },
  });
  return (
    <Panel
      title="Criteria"
      about="learned from results, per cohort"
      flush
      aside={
        <Button busy={learn.isPending} onClick={() => learn.mutate()}>
          Learn now
        </Button>
      }
    >
      {learn.isError && (
        <div className="px-4 pb-3">
          <ErrorNotice error={learn.error} />
        </div>
      )}
      <QueryView query={query} loading={<SkeletonRows className="px-4 pb-4" />}>
        {(criteria) =>
          criteria.length === 0 ? (
            <div className="px-4 pb-3">
              <Empty title="There are no criteria yet.">
                Until there are, every verdict is unknown, never pass. Run a suite on several nodes, then
                learn.
              </Empty>
            </div>
          ) : (
            <DataTable
              label="Criteria"
              data={criteria}
              columns={columns}
              rowId={(c) => `${c.benchmark}/${c.metric}/${c.cohort}`}
              right={["n"]}
            />
          )
        }
      </QueryView>
    </Panel>
  );
}
