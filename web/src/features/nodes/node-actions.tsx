/** The dialog for drain, undrain, quarantine, and validate. It sends a reason and the version of the displayed state. */
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { client, unwrap } from "@/api/client";
import type { Node } from "@/api/types";
import { humanize, plural } from "@/lib/format";
import { type Act, ActDialog } from "@/ui/act-dialog";
import { Field, Input } from "@/ui/field";
import { Segmented } from "@/ui/segmented";
import { useToast } from "@/ui/toast";
import type { NodeAction } from "./lifecycle-model";
import { nodeKeys } from "./queries";

interface ActionLabels {
  title: (node: string) => string;
  about: string;
  verb: string;
  done: string;
}

export const actionLabels: Record<NodeAction, ActionLabels> = {
  drain: {
    title: (node) => `Drain ${node}`,
    about: "The node gets no new work. Running jobs can leave it before the deadline.",
    verb: "Drain",
    done: "Draining",
  },
  undrain: {
    title: (node) => `Undrain ${node}`,
    about: "The drain ends. If findings are still active, the node returns to suspect.",
    verb: "Undrain",
    done: "Undrained",
  },
  quarantine: {
    title: (node) => `Quarantine ${node}`,
    about: "The node leaves service immediately. Only a passed validation ends the quarantine.",
    verb: "Quarantine",
    done: "Quarantined",
  },
  validate: {
    title: (node) => `Validate ${node}`,
    about:
      "Benchmarks run on its devices. If they pass, the node returns to healthy. Otherwise it goes to quarantine.",
    verb: "Validate",
    done: "Validation requested",
  },
};

const suites = ["usual", "quick", "standard", "deep"] as const;
type Suite = (typeof suites)[number];

interface Props {
  node: Node;
  act: NodeAction;
  onClose: () => void;
}

export function NodeActionDialog({ node, act, onClose }: Props) {
  const [expected] = useState(node.state_version); // the displayed state, not a later one
  const [suite, setSuite] = useState<Suite>("usual");
  const [minutes, setMinutes] = useState("");
  const [mode, setMode] = useState<"wait" | "migrate">("wait");
  const queryClient = useQueryClient();
  const toast = useToast();
  const word = actionLabels[act];
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
        ? client.POST("/v1/nodes/{name}:drain", {
            params,
            headers,
            body: { ...body, deadline_seconds: deadline, external: false, mode },
          })
        : act === "undrain"
          ? client.POST("/v1/nodes/{name}:undrain", { params, headers, body })
          : act === "quarantine"
            ? client.POST("/v1/nodes/{name}:quarantine", { params, headers, body })
            : client.POST("/v1/nodes/{name}:validate", {
                params,
                headers,
                body: { ...body, suite: suite === "usual" ? null : suite },
              });
    return unwrap<Node>(asked).catch((error: unknown) => {
      refresh(); // a rejected action means that the page is out of date
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
        toast(word.done);
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
              ? `${plural(node.jobs.length, "job")} will get a request to migrate ranks to warm standbys on other nodes. The job page shows the result.`
              : "Jobs stay until they end or leave the node."}
          </p>
        </div>
      )}
      {act === "drain" && (
        <Field
          label="Deadline (minutes)"
          hint="At the deadline, the node is quarantined even if jobs still run on it. Leave empty for no deadline."
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
            The configured suite, or a stronger one if the current verdict requires it.
          </p>
        </div>
      )}
    </ActDialog>
  );
}
