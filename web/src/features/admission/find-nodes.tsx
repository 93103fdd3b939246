/** Ask for a number of nodes that are fit for a job; nothing is reserved. */
import { useMutation } from "@tanstack/react-query";
import { type FormEvent, type ReactNode, useState } from "react";
import { client, unwrap } from "@/api/client";
import type { Selection } from "@/api/types";
import { names } from "@/features/validation/sweep-form";
import { integer, plural } from "@/lib/format";
import { statusStyleOf } from "@/lib/status-styles";
import { Age } from "@/ui/age";
import { Button } from "@/ui/button";
import { CopyButton, CopyMenu, curl } from "@/ui/copy";
import { Field, Input } from "@/ui/field";
import { Empty, ErrorNotice } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { StatePill } from "@/ui/state-pill";
import { Row, SHOWN } from "./admission-results";
import { LimitFields, limitsOf, noLimits } from "./limit-fields";
import { decisionLook, listed } from "./model";

const none = { count: "1", job: "", racks: "", cohorts: "", exclude: "" };

export function FindNodes({ modes }: { modes: ReactNode }) {
  const [fields, setFields] = useState(none);
  const [limits, setLimits] = useState(noLimits);
  const body = {
    count: Number(fields.count),
    job: fields.job.trim() || null,
    racks: listed(fields.racks),
    cohorts: listed(fields.cohorts),
    exclude: names(fields.exclude),
    degraded: true,
    ...limitsOf(limits),
  };
  const find = useMutation<Selection, Error, typeof body>({
    mutationFn: (question) => unwrap(client.POST("/v1/admission:select", { body: question })),
  });

  function submit(event: FormEvent) {
    event.preventDefault();
    find.mutate(body);
  }

  function input(name: keyof typeof none, label: string, hint?: string) {
    const isCount = name === "count";
    return (
      <Field label={label} hint={hint}>
        {(id) => (
          <Input
            id={id}
            type={isCount ? "number" : "text"}
            min={isCount ? 1 : undefined}
            max={isCount ? 100_000 : undefined}
            required={isCount}
            value={fields[name]}
            onChange={(event) => setFields({ ...fields, [name]: event.target.value })}
            className={isCount ? "w-28" : undefined}
          />
        )}
      </Field>
    );
  }

  return (
    <>
      <Panel title="Find nodes" about="reserves nothing" aside={modes}>
        <form onSubmit={submit} className="flex flex-col gap-4">
          {input("count", "Number of nodes")}
          <div className="grid gap-4 sm:grid-cols-2">
            {input("racks", "Racks", "Separated by commas; empty: any.")}
            {input("cohorts", "Cohorts", "Separated by commas; empty: any.")}
            {input("exclude", "Exclude nodes", "Separated by spaces or commas.")}
            {input("job", "Job", "Its own nodes count as free.")}
          </div>
          <LimitFields limits={limits} onChange={setLimits} />
          {find.isError && <ErrorNotice error={find.error} />}
          <div className="flex justify-end gap-2">
            <CopyMenu commands={[curl("/v1/admission:select", body)]} />
            <Button type="submit" kind="primary" busy={find.isPending} disabled={!(body.count >= 1)}>
              Find nodes
            </Button>
          </div>
        </form>
      </Panel>
      {find.data ? (
        <Found found={find.data} />
      ) : (
        <Panel title="Result">
          <Empty title="No result yet.">
            Mainstay names nodes that admission allows now and that run no other job, close together.
          </Empty>
        </Panel>
      )}
    </>
  );
}

function Found({ found }: { found: Selection }) {
  const few = found.nodes.length < found.count;
  return (
    <Panel
      title="Result"
      about={
        <>
          of {plural(found.considered, "node")}, <Age at={found.at} />
        </>
      }
      aside={
        found.nodes.length > 0 && (
          <CopyButton text={found.nodes.map((node) => node.node).join(",")} label="Copy names" />
        )
      }
      flush
    >
      <div className="flex flex-col gap-1.5 px-4 pb-3 text-sm" aria-live="polite">
        {few ? (
          <p className="font-medium">
            {integer(found.nodes.length)} of {plural(found.count, "node")} found.
          </p>
        ) : (
          <>
            <div>
              <StatePill look={statusStyleOf(decisionLook, found.decision)} />
            </div>
            <p className="first-letter:uppercase">{found.reason}.</p>
          </>
        )}
        {found.unfit.length > 0 && (
          <>
            <p className="text-ink-2">The other nodes, each counted for its first reason:</p>
            <ul aria-label="Why other nodes are not fit" className="list-disc pl-5 text-ink-2">
              {found.unfit.map((one) => (
                <li key={`${one.code} ${one.state}`}>{one.text}</li>
              ))}
            </ul>
          </>
        )}
      </div>
      <ul aria-label="Fit nodes">
        {found.nodes.slice(0, SHOWN).map((node) => (
          <Row key={node.node} node={node} place={[node.rack, node.cohort].filter(Boolean).join(", ")} />
        ))}
      </ul>
      {found.nodes.length > SHOWN && (
        <p className="border-line border-t px-4 py-2 text-ink-2 text-sm">
          And {integer(found.nodes.length - SHOWN)} more, which Copy names includes.
        </p>
      )}
    </Panel>
  );
}
