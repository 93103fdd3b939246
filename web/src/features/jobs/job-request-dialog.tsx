/** The dialog that asks a running job for something: what, about which ranks or node, and why. */
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { client, unwrap } from "@/api/client";
import type { Job } from "@/api/types";
import { type Act, ActDialog } from "@/ui/act-dialog";
import { Field, Input } from "@/ui/field";
import { Picker } from "@/ui/picker";
import { Select } from "@/ui/select";
import { useToast } from "@/ui/toast";
import { jobKeys } from "./queries";
import { kinds, named, obstacleTo, type RequestKind, subjects } from "./request-model";

const order: RequestKind[] = ["save", "check", "migrate", "restore", "degrade", "reshape"];

export function JobRequestDialog({ job, onClose }: { job: Job; onClose: () => void }) {
  const [kind, setKind] = useState<RequestKind>("save");
  const [subject, setSubject] = useState("");
  const [dp, setDp] = useState(job.topology.dp);
  const [pp, setPp] = useState(job.topology.pp);
  const [tp, setTp] = useState(job.topology.tp);
  const queryClient = useQueryClient();
  const toast = useToast();
  const { about, names } = kinds[kind];
  const obstacle = obstacleTo(job, kind);

  function run({ reason, headers }: Act) {
    const shape = names === "shape" ? { dp, pp, tp } : {};
    const body = {
      kind,
      reason: reason.slice(0, 200),
      dp: 0,
      pp: 0,
      tp: 0,
      stages: [],
      ...shape,
      ...named(names ? subject : ""),
    };
    const params = { path: { id: job.id } };
    return unwrap(client.POST("/v1/jobs/{id}/requests", { params, headers, body }));
  }

  function choose(next: string) {
    setKind(next as RequestKind);
    setSubject("");
  }

  return (
    <ActDialog
      title={`Request to job ${job.name}`}
      about={about}
      verb="Send request"
      blocked={obstacle !== "" || ((names === "any" || names === "node") && subject === "")}
      run={run}
      onClose={onClose}
      onDone={() => {
        void queryClient.invalidateQueries({ queryKey: jobKeys.requests(job.id) });
        toast("Request sent");
      }}
    >
      <div className="flex flex-wrap items-center gap-2">
        <Select
          label="Request"
          value={kind}
          onChange={choose}
          groups={[{ options: order.map((value) => ({ value, label: kinds[value].label })) }]}
        />
        {(names === "any" || names === "node") && (
          <Picker
            label={names === "node" ? "Node" : "Node or rank"}
            value={subject || (names === "node" ? "Choose a node" : "Choose a node or rank")}
            onChange={setSubject}
            options={subjects(job, names)}
          />
        )}
      </div>
      {names === "shape" && (
        <div className="flex flex-wrap gap-4">
          <Count label="Data-parallel replicas" value={dp} onChange={setDp} />
          <Count label="Pipeline stages" value={pp} onChange={setPp} />
          <Count label="Tensor-parallel ranks" value={tp} onChange={setTp} />
        </div>
      )}
      {obstacle && (
        <p role="status" className="text-ink-2 text-sm">
          Not possible now: {obstacle}
        </p>
      )}
    </ActDialog>
  );
}

interface CountProps {
  label: string;
  value: number;
  onChange: (value: number) => void;
}

function Count({ label, value, onChange }: CountProps) {
  return (
    <Field label={label}>
      {(id) => (
        <Input
          id={id}
          type="number"
          inputMode="numeric"
          min={1}
          value={value}
          onChange={(event) => onChange(Number(event.target.value))}
          className="max-w-28"
        />
      )}
    </Field>
  );
}
