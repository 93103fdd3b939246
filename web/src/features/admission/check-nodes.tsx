/** The admission check of a scheduler as a form, which changes nothing. */
import { useMutation } from "@tanstack/react-query";
import { type FormEvent, type ReactNode, useState } from "react";
import { client, unwrap } from "@/api/client";
import type { Admission } from "@/api/types";
import { names } from "@/features/validation/sweep-form";
import { Button } from "@/ui/button";
import { CopyMenu, curl } from "@/ui/copy";
import { Field, Input, TextArea } from "@/ui/field";
import { Empty, ErrorNotice } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { Answer } from "./admission-results";
import { LimitFields, limitsOf, noLimits } from "./limit-fields";

export function CheckNodes({ modes }: { modes: ReactNode }) {
  const [job, setJob] = useState("");
  const [nodes, setNodes] = useState("");
  const [limits, setLimits] = useState(noLimits);
  const asked = names(nodes);
  const body = {
    job: job.trim(),
    nodes: asked,
    ...limitsOf(limits),
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
    <>
      <Panel title="Admission check" about="uses stored results and changes nothing" aside={modes}>
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
          <LimitFields limits={limits} onChange={setLimits} />
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
    </>
  );
}
