/** Drain, undrain, quarantine, validate: asked with a reason, against the state that the person saw. */
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { client, unwrap } from "@/api/client";
import type { Node } from "@/api/types";
import { humanize, plural } from "@/lib/format";
import { type Act, ActDialog } from "@/ui/act-dialog";
import { Field, Input } from "@/ui/field";
import { Segmented } from "@/ui/segmented";
import { useToast } from "@/ui/toast";
import type { NodeAct } from "./life-cycle-model";
import { nodeKeys } from "./queries";

interface Words {
  title: (node: string) => string;
  about: string;
  verb: string;
  done: string;
}

export const actWords: Record<NodeAct, Words> = {
  drain: {
    title: (node) => `Drain ${node}`,
    about: "It gets no new work. Running jobs are told, so that they can leave it before the deadline.",
    verb: "Drain",
    done: "Draining",
  },
  undrain: {
    title: (node) => `Take ${node} back`,
    about: "The drain ends. What was found against it still stands: it returns as suspect where it was.",
    verb: "Undrain",
    done: "Taken back",
  },
  quarantine: {
    title: (node) => `Quarantine ${node}`,
    about: "It is kept from work at once. Only a validation that passes leads out.",
    verb: "Quarantine",
    done: "Quarantined",
  },
  validate: {
    title: (node) => `Validate ${node}`,
    about: "Benchmarks run on its devices. A pass leads back to healthy; anything else to quarantine.",
    verb: "Validate",
    done: "Validation ordered",
  },
};

const suites = ["usual", "quick", "standard", "deep"] as const;
type Suite = (typeof suites)[number];

interface Props {
  node: Node;
  act: NodeAct;
  onClose: () => void;
}

export function ActOnNode({ node, act, onClose }: Props) {
  const [expected] = useState(node.state_version); // what the person saw, not what came meanwhile
  const [suite, setSuite] = useState<Suite>("usual");
  const [minutes, setMinutes] = useState("");
  const [mode, setMode] = useState<"wait" | "migrate">("wait");
  const queryClient = useQueryClient();
  const say = useToast();
  const word = actWords[act];
  const refresh = () => {
    for (const key of [nodeKeys.all, ["overview"], ["validations"], ["remediations"]])
      void queryClient.invalidateQueries({ queryKey: key });
  };
  const deadline = minutes.trim() === "" ? null : Number(minutes) * 60;

  function run({ reason, headers }: Act) {
    const params = { path: { name: node.name } };
    const body = { reason, expected_version: expected };
    const asked =
      act === "drain"
        ? client.POST("/v1/nodes/{name}/drain", {
            params,
            headers,
            body: { ...body, deadline_seconds: deadline, outside: false, mode },
          })
        : act === "undrain"
          ? client.POST("/v1/nodes/{name}/undrain", { params, headers, body })
          : act === "quarantine"
            ? client.POST("/v1/nodes/{name}/quarantine", { params, headers, body })
            : client.POST("/v1/nodes/{name}/validate", {
                params,
                headers,
                body: { ...body, suite: suite === "usual" ? null : suite },
              });
    return unwrap<Node>(asked).catch((error: unknown) => {
      refresh(); // a refusal means that the page is out of date
      throw error;
    });
  }

  return (
    <ActDialog
      title={word.title(node.name)}
      about={word.about}
      verb={word.verb}
      danger={act === "quarantine"}
      run={run}
      onClose={onClose}
      onDone={() => {
        refresh();
        say(word.done);
      }}
    >
      {act === "drain" && (
        <div className="flex flex-col gap-1">
          <Segmented
            label="Running jobs"
            value={mode}
            onChange={setMode}
            options={[
              { value: "wait", label: "Wait for them" },
              { value: "migrate", label: "Migrate ranks first" },
            ]}
          />
          <p className="text-ink-3 text-xs">
            {mode === "migrate"
              ? `${plural(node.jobs.length, "job")} will be asked to move ranks to warm standbys elsewhere; each job's page shows what became of it.`
              : "Jobs stay until they end or leave by themselves."}
          </p>
        </div>
      )}
      {act === "drain" && (
        <Field
          label="Deadline, minutes"
          hint="After it the node is quarantined even if work is left on it. Empty: no deadline."
        >
          {(id) => (
            <Input
              id={id}
              type="number"
              inputMode="numeric"
              min={0.1}
              step="any"
              value={minutes}
              onChange={(event) => setMinutes(event.target.value)}
              className="max-w-40"
            />
          )}
        </Field>
      )}
      {act === "validate" && (
        <div className="flex flex-col gap-1">
          <Segmented
            label="Suite"
            value={suite}
            onChange={setSuite}
            options={suites.map((value) => ({ value, label: humanize(value) }))}
          />
          <p className="text-ink-3 text-xs">
            The usual suite, or a stronger one where the standing verdict asks for it.
          </p>
        </div>
      )}
    </ActDialog>
  );
}
