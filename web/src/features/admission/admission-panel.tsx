/** The admission check of a scheduler as a form, which changes nothing; and the pauses of admission. */
import { useMutation, useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { client, unwrap } from "@/api/client";
import type { Admission } from "@/api/types";
import { suitesQuery } from "@/features/validation/queries";
import { names } from "@/features/validation/sweep-form";
import { humanize } from "@/lib/format";
import { Button } from "@/ui/button";
import { CopyMenu, curl } from "@/ui/copy";
import { Field, Input, TextArea } from "@/ui/field";
import { Empty, ErrorNotice } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { Select } from "@/ui/select";
import { Answer } from "./admission-results";
import { Pauses } from "./pauses";

const USUAL = "usual";

export function AdmissionPanel() {
  const suites = useQuery(suitesQuery());
  const [job, setJob] = useState("");
  const [nodes, setNodes] = useState("");
  const [gpus, setGpus] = useState("");
  const [suite, setSuite] = useState(USUAL);
  const asked = names(nodes);
  const body = {
    job: job.trim(),
    nodes: asked,
    gpus_per_node: gpus.trim() === "" ? null : Number(gpus),
    suite: suite === USUAL ? null : suite,
    preempt: false,
    preflight: false,
  };
  const ask = useMutation<Admission, Error, typeof body>({
    mutationFn: (question) => unwrap(client.POST("/v1/admission", { body: question })),
  });

  function submit(event: FormEvent) {
    event.preventDefault();
    if (body.job && asked.length > 0) ask.mutate(body);
  }

  return (
    <div className="grid items-start gap-4 lg:grid-cols-[minmax(0,2fr)_minmax(0,3fr)]">
      <div className="lg:col-span-2">
        <Pauses />
      </div>
      <Panel title="Admission check" about="uses stored results and changes nothing">
        <form onSubmit={submit} className="flex flex-col gap-4">
          <Field label="Job">
            {(id) => <Input id={id} required value={job} onChange={(event) => setJob(event.target.value)} />}
          </Field>
          <Field label="Nodes" hint="Names, separated by spaces, commas, or lines.">
            {(id) => (
              <TextArea
                id={id}
                required
                value={nodes}
                onChange={(event) => setNodes(event.target.value)}
                className="font-mono"
              />
            )}
          </Field>
          <div className="flex flex-wrap items-end gap-4">
            <Field label="GPUs per node">
              {(id) => (
                <Input
                  id={id}
                  type="number"
                  inputMode="numeric"
                  min={1}
                  max={1024}
                  value={gpus}
                  onChange={(event) => setGpus(event.target.value)}
                  className="w-28"
                />
              )}
            </Field>
            <Select
              label="Minimum suite"
              value={suite}
              onChange={setSuite}
              groups={[
                {
                  options: [
                    { value: USUAL, label: "As configured" },
                    ...(suites.data ?? []).map((s) => ({
                      value: s.name,
                      label: `At least ${humanize(s.name).toLowerCase()}`,
                    })),
                  ],
                },
              ]}
            />
          </div>
          {ask.isError && <ErrorNotice error={ask.error} />}
          <div className="flex justify-end gap-2">
            <CopyMenu commands={[curl("/v1/admission", body)]} />
            <Button
              type="submit"
              kind="primary"
              busy={ask.isPending}
              disabled={!body.job || asked.length === 0}
            >
              Check admission
            </Button>
          </div>
        </form>
      </Panel>
      {ask.data ? (
        <Answer answer={ask.data} />
      ) : (
        <Panel title="Result">
          <Empty title="No result yet.">
            Enter nodes and run the check. Nodes without a validation, or with an UNKNOWN verdict, are denied.
          </Empty>
        </Panel>
      )}
    </div>
  );
}
