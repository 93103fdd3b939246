/** What would a job keep of its time, if its nodes failed so and it recovered so? Simulated; nothing happens to any job. */
import { useMutation, useQuery } from "@tanstack/react-query";
import { getRouteApi } from "@tanstack/react-router";
import { client, unwrap } from "@/api/client";
import type { Simulation, SimulationQuestion } from "@/api/types";
import { jobQuery, jobsQuery, stepsQuery } from "@/features/jobs/queries";
import { CopyMenu, curl } from "@/ui/copy";
import { Empty, ErrorNotice } from "@/ui/notice";
import { Page } from "@/ui/page";
import { Panel } from "@/ui/panel";
import { Select } from "@/ui/select";
import { SkeletonRows } from "@/ui/skeleton";
import { Answer } from "./answer";
import { Ask } from "./ask";
import { fieldsOf, numbersOf, USUAL } from "./model";
import { policiesQuery } from "./queries";

const route = getRouteApi("/shell/what-if");
const NO_JOB = "none";

export function WhatIfPage() {
  const { job } = route.useSearch();
  const navigate = route.useNavigate();
  const simulate = useMutation<Simulation, Error, SimulationQuestion>({
    mutationFn: (body) => unwrap(client.POST("/v1/plans:simulate", { body })),
  });
  return (
    <Page
      title="What if"
      meta={
        <span>
          What a job keeps of its time if nodes fail and it recovers so. Nothing happens to any job.
        </span>
      }
      actions={
        <CopyMenu
          commands={[
            curl("/v1/plans:simulate", simulate.variables ?? {}),
            { label: "CLI", text: "mainstay simulate --sweep spares --plot what-if.svg" },
          ]}
        />
      }
    >
      <div className="grid items-start gap-4 xl:grid-cols-[minmax(19rem,1fr)_minmax(0,3fr)]">
        <Panel title="The job and its failures" about="asking changes nothing">
          <div className="flex flex-col gap-4">
            <ChooseJob job={job} onJob={(next) => void navigate({ search: { job: next }, replace: true })} />
            <FilledForm key={job ?? NO_JOB} job={job} busy={simulate.isPending} onAsk={simulate.mutate} />
          </div>
        </Panel>
        <div className="flex min-w-0 flex-col gap-4">
          {simulate.isPending ? (
            <Panel title="What each policy keeps" about="simulating">
              <SkeletonRows rows={6} />
            </Panel>
          ) : simulate.isError ? (
            <ErrorNotice error={simulate.error} onRetry={() => simulate.mutate(simulate.variables)} />
          ) : simulate.data ? (
            <Answer answer={simulate.data} />
          ) : (
            <Panel title="What each policy keeps">
              <Empty title="Nothing was asked yet.">
                Every policy meets the same simulated failures, so that what differs between them is theirs.
                The form holds a job like Llama 3's; choose one of yours, or change what you like.
              </Empty>
            </Panel>
          )}
        </div>
      </div>
    </Page>
  );
}

function ChooseJob({ job, onJob }: { job: string | undefined; onJob: (job: string | undefined) => void }) {
  const jobs = useQuery(jobsQuery());
  const known = jobs.data?.items ?? [];
  const missing = job !== undefined && !known.some((one) => one.id === job);
  const options = [
    { value: NO_JOB, label: "A job like Llama 3's" },
    ...known.map((one) => ({ value: one.id, label: one.name })),
    ...(missing ? [{ value: job, label: job }] : []),
  ];
  return (
    <div className="flex flex-col items-start gap-1">
      <span className="font-medium text-ink text-sm">Shape and pace of</span>
      <Select
        label="Shape and pace of"
        value={job ?? NO_JOB}
        onChange={(value) => onJob(value === NO_JOB ? undefined : value)}
        groups={[{ options }]}
      />
    </div>
  );
}

interface FormProps {
  job: string | undefined;
  busy: boolean;
  onAsk: (question: SimulationQuestion) => void;
}

/** The form, once everything that fills it is known. */
function FilledForm({ job, busy, onAsk }: FormProps) {
  const policies = useQuery(policiesQuery());
  const shape = useQuery({ ...jobQuery(job ?? ""), enabled: job !== undefined });
  const steps = useQuery({ ...stepsQuery(job ?? ""), enabled: job !== undefined });
  const failed = [policies, shape].find((query) => query.isError);
  if (failed) return <ErrorNotice error={failed.error} onRetry={() => void failed.refetch()} />;
  // Steps only say how long one takes: without them the usual pace stands.
  const waiting =
    job !== undefined && (shape.data === undefined || (steps.data === undefined && !steps.isError));
  if (policies.data === undefined || waiting) return <SkeletonRows rows={8} />;
  const numbers = shape.data === undefined ? USUAL : numbersOf(shape.data, steps.data);
  return <Ask initial={fieldsOf(policies.data, numbers)} busy={busy} onAsk={onAsk} />;
}
