/** Pauses of admission: what is paused and why, and the dialogs that pause and resume it. */
import { queryOptions, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { client, unwrap } from "@/api/client";
import type { AdmissionPause } from "@/api/types";
import { usePolling } from "@/lib/live";
import { type Act, ActDialog } from "@/ui/act-dialog";
import { Age } from "@/ui/age";
import { Button } from "@/ui/button";
import { Field, Input } from "@/ui/field";
import { Glyph } from "@/ui/glyph";
import { Empty, ErrorNotice } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { useToast } from "@/ui/toast";

const key = ["admission", "pauses"] as const;

const pausesQuery = () =>
  queryOptions({
    queryKey: key,
    queryFn: async ({ signal }) => (await unwrap(client.GET("/v1/admission/pauses", { signal }))).items,
  });

function placeOf(pause: AdmissionPause) {
  return pause.rack === null ? "the fleet" : `rack ${pause.rack}`;
}

/** On the first page, while anything is paused. */
export function PausedAdmission() {
  const pauses = useQuery({ ...pausesQuery(), refetchInterval: usePolling(15_000) });
  if (!pauses.data?.length) return null;
  return (
    <div role="status" className="flex items-start gap-2 rounded-md bg-suspect-soft px-3 py-1.5 text-sm">
      <span className="mt-1">
        <Glyph name="half" tone="suspect" size={11} />
      </span>
      <span className="min-w-0 break-words">
        Admission of new work is paused:{" "}
        {pauses.data.map((pause) => `${placeOf(pause)} (${pause.reason})`).join(", ")}.
      </span>
      <Link to="/validation" search={{ tab: "admission" }} className="text-accent hover:underline">
        Show
      </Link>
    </div>
  );
}

export function Pauses() {
  const pauses = useQuery({ ...pausesQuery(), refetchInterval: usePolling(15_000) });
  const [pausing, setPausing] = useState(false);
  const [resumed, setResumed] = useState<AdmissionPause | null>(null);
  return (
    <Panel
      title="Pauses"
      about="new work is denied; running jobs continue"
      aside={<Button onClick={() => setPausing(true)}>Pause admission</Button>}
    >
      {pauses.isError && <ErrorNotice error={pauses.error} onRetry={() => void pauses.refetch()} />}
      {pauses.data?.length === 0 && <Empty title="Admission is not paused." />}
      <ul className="flex flex-col gap-2">
        {pauses.data?.map((pause) => (
          <li key={pause.rack ?? ""} className="flex flex-wrap items-center justify-between gap-2 text-sm">
            <span className="min-w-0 break-words">
              Paused for {placeOf(pause)} by {pause.actor} <Age at={pause.created_at} />: {pause.reason}
            </span>
            <Button onClick={() => setResumed(pause)}>Resume</Button>
          </li>
        ))}
      </ul>
      {pausing && <PauseDialog onClose={() => setPausing(false)} />}
      {resumed && <ResumeDialog pause={resumed} onClose={() => setResumed(null)} />}
    </Panel>
  );
}

function useDone(said: string) {
  const queryClient = useQueryClient();
  const toast = useToast();
  return () => {
    void queryClient.invalidateQueries({ queryKey: key });
    toast(said);
  };
}

function PauseDialog({ onClose }: { onClose: () => void }) {
  const [rack, setRack] = useState("");
  const onDone = useDone("Admission paused");
  const run = ({ reason, headers }: Act) => {
    const body = { rack: rack.trim() || null, reason };
    return unwrap(client.POST("/v1/admission:pause", { body, headers }));
  };
  return (
    <ActDialog
      title="Pause admission"
      about="Mainstay denies new jobs on these nodes until an operator resumes admission. Running jobs continue and may restart."
      verb="Pause admission"
      hint="Shown to everyone whom the pause denies, with your name."
      run={run}
      onClose={onClose}
      onDone={onDone}
    >
      <Field label="Rack" hint="Empty: the whole fleet.">
        {(id) => (
          <Input
            id={id}
            value={rack}
            onChange={(event) => setRack(event.target.value)}
            className="max-w-56"
          />
        )}
      </Field>
    </ActDialog>
  );
}

function ResumeDialog({ pause, onClose }: { pause: AdmissionPause; onClose: () => void }) {
  const onDone = useDone("Admission resumed");
  const run = ({ reason, headers }: Act) =>
    unwrap(client.POST("/v1/admission:resume", { body: { rack: pause.rack, reason }, headers }));
  return (
    <ActDialog
      title={`Resume admission to ${placeOf(pause)}`}
      about="New jobs may start there again, if no other rule denies them."
      verb="Resume admission"
      hint="Written to the log of the service with your name."
      run={run}
      onClose={onClose}
      onDone={onDone}
    />
  );
}
