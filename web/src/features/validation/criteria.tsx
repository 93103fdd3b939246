/** The criteria by cohort and their source. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { client, idempotencyKey, unwrap } from "@/api/client";
import type { Criterion } from "@/api/types";
import { limitText } from "@/charts/ecdf-chart";
import { signalLabel } from "@/lib/format";
import { Age } from "@/ui/age";
import { Button } from "@/ui/button";
import { Empty, ErrorNotice } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { Select } from "@/ui/select";
import { SkeletonRows } from "@/ui/skeleton";
import { type Column, columnsFor, DataTable } from "@/ui/table";
import { useToast } from "@/ui/toast";
import { criteriaQuery, validationKeys } from "./queries";

const column = columnsFor<Criterion>();
const columns: Column<Criterion>[] = column.columns([
  column.accessor("benchmark", {
    header: "Benchmark",
    cell: ({ row }) => <span className="font-mono text-xs">{row.original.benchmark}</span>,
  }),
  column.accessor("metric", {
    header: "Metric",
    cell: ({ row: { original } }) => (
      <Link
        to="/validation/criterion"
        search={{ cohort: original.cohort, benchmark: original.benchmark, metric: original.metric }}
        className="font-medium hover:underline"
      >
        {signalLabel(original.metric)}
      </Link>
    ),
  }),
  column.accessor("low", {
    id: "band",
    header: "Accepted",
    cell: ({ row: { original } }) =>
      limitText(original.low, original.high, original.unit).replace("accepted ", ""),
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

const NONE: Criterion[] = [];

export function Criteria() {
  const query = useQuery(criteriaQuery());
  const [chosen, setCohort] = useState<string>();
  const cohorts = [...new Set((query.data ?? NONE).map((criterion) => criterion.cohort))];
  const cohort = chosen !== undefined && cohorts.includes(chosen) ? chosen : cohorts[0];
  return (
    <Panel
      title="Criteria"
      term="criterion"
      about="learned from results, per cohort"
      flush
      aside={
        <>
          {cohort !== undefined && cohorts.length > 1 && (
            <Select
              label="Cohort"
              value={cohort}
              onChange={setCohort}
              groups={[{ options: cohorts.map((value) => ({ value, label: value })) }]}
            />
          )}
          <Learn />
        </>
      }
    >
      <QueryView query={query} loading={<SkeletonRows className="px-4 pb-4" />}>
        {(criteria) =>
          cohort === undefined ? (
            <div className="px-4 pb-3">
              <Empty title="No criteria yet.">
                Without criteria, every verdict is UNKNOWN. Run a suite on several nodes, then learn.
              </Empty>
            </div>
          ) : (
            <>
              {cohorts.length === 1 && <p className="px-4 pb-2 text-ink-2 text-sm">Cohort {cohort}</p>}
              <DataTable
                label={`Criteria of ${cohort}`}
                data={criteria.filter((criterion) => criterion.cohort === cohort)}
                columns={columns}
                rowId={(c) => `${c.benchmark}/${c.metric}/${c.cohort}`}
                right={["n"]}
              />
            </>
          )
        }
      </QueryView>
    </Panel>
  );
}

function Learn() {
  const queryClient = useQueryClient();
  const toast = useToast();
  const learn = useMutation({
    mutationFn: () => unwrap(client.POST("/v1/criteria:learn", { body: {}, headers: idempotencyKey() })),
    onSuccess: () => {
      void queryClient.invalidateQueries({ queryKey: validationKeys.criteria });
      toast("Criteria learned from stored results");
    },
  });
  return (
    <>
      {learn.isError && <ErrorNotice error={learn.error} />}
      <Button busy={learn.isPending} onClick={() => learn.mutate()}>
        Learn criteria
      </Button>
    </>
  );
}
