/** The simulation page: ETTR of a job by recovery policy. It does not affect running jobs. */
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
import { fieldsOf, numbersOf, USUAL } from "./model";
import { policiesQuery } from "./queries";
import { SimulationForm } from "./simulation-form";
import { Answer } from "./simulation-results";

const route = getRouteApi("/shell/simulation");
const NO_JOB = "none";

export function SimulationPage() {
  const { job } = route.useSearch();
  const navigate = route.useNavigate();
  const simulate = useMutation<Simulation, Error, SimulationQuestion>({
    mutationFn: (body) => unwrap(client.POST("/v1/simulations", { body })),
  });
  return (
    <Page
      title="Simulation"
      meta={
        <span>
          Estimate the effective training time ratio (ETTR) of a job by recovery policy. Running jobs are not
          affected.
        </span>
      }
      actions={
        <CopyMenu
          commands={[
            curl("/v1/simulations", simulate.variables ?? {}),
            { label: "CLI", text: "mainstay simulate --sweep spares --plot simulation.svg" },
          ]}
        />
      }
    >
      <div className="grid items-start gap-4 xl:grid-cols-[minmax(19rem,1fr)_minmax(0,3fr)]">
        <Panel title="Job and failures">
          <div className="flex flex-col gap-4">
            <ChooseJob job={job} onJob={(next) => void navigate({ search: { job: next }, replace: true })} />
            <FilledForm key={job ?? NO_JOB} job={job} busy={simulate.isPending} onAsk={simulate.mutate} />
          </div>
        </Panel>
        <div className="flex min-w-0 flex-col gap-4">
          {simulate.isPending ? (
            <Panel title="Results" about="simulating">
              <SkeletonRows rows={6} />
            </Panel>
          ) : simulate.isError ? (
            <ErrorNotice error={simulate.error} onRetry={() => simulate.mutate(simulate.variables)} />
          ) : simulate.data ? (
            <Answer answer={simulate.data} />
          ) : (
            <Panel title="Results">
              <Empty title="No result yet.">
                Run a simulation. All policies get the same simulated failures, so their results are
                comparable. Select one of your jobs, or edit the example.
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
    { value: NO_JOB, label: "Llama 3 job" },
    ...known.map((one) => ({ value: one.id, label: one.name })),
    ...(missing ? [{ value: job, label: job }] : []),
  ];
  return (
    <div className="flex flex-col items-start gap-1">
      <span className="font-medium text-ink text-sm">Shape and step time from</span>
      <Select
        label="Shape and step time from"
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

/** The form, after its data is loaded. */
function FilledForm({ job, busy, onAsk }: FormProps) {
  const policies = useQuery(policiesQuery());
  const shape = useQuery({ ...jobQuery(job ?? ""), enabled: job !== undefined });
  const steps = useQuery({ ...stepsQuery(job ?? ""), enabled: job !== undefined });
  const failed = [policies, shape].find((query) => query.isError);
  if (failed) return <ErrorNotice error={failed.error} onRetry={() => void failed.refetch()} />;
  // Steps provide only the step time; without them, the default applies.
  const waiting =
    job !== undefined && (shape.data === undefined || (steps.data === undefined && !steps.isError));
  if (policies.data === undefined || waiting) return <SkeletonRows rows={8} />;
  const numbers = shape.data === undefined ? USUAL : numbersOf(shape.data, steps.data);
  return <SimulationForm initial={fieldsOf(policies.data, numbers)} busy={busy} onAsk={onAsk} />;
}
