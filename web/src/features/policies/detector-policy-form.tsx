/** The form that replaces the policy of a detector, with what the chosen mode means. */
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { client, idempotencyKey, unwrap } from "@/api/client";
import { problemOf } from "@/api/problem";
import type { Detector, DetectorMode } from "@/api/types";
import { Age } from "@/ui/age";
import { Button } from "@/ui/button";
import { Field, Input, TextArea } from "@/ui/field";
import { Segmented } from "@/ui/segmented";
import { useToast } from "@/ui/toast";
import { detectorModes } from "./detector-model";
import { policyKeys } from "./queries";

const modes = (Object.keys(detectorModes) as DetectorMode[]).map((value) => ({
  value,
  label: detectorModes[value].label,
}));

interface Props {
  detector: Detector;
  /** The site's least confidence of a finding that proposes a remediation. */
  siteConfidence: number;
}

export function DetectorPolicyForm({ detector, siteConfidence }: Props) {
  const { name, policy, effects } = detector;
  const [mode, setMode] = useState(policy.mode);
  const [confidence, setConfidence] = useState(policy.min_confidence?.toString() ?? "");
  const [reason, setReason] = useState("");
  const queryClient = useQueryClient();
  const toast = useToast();
  const min_confidence = confidence === "" ? null : Number(confidence);
  const same = mode === policy.mode && min_confidence === policy.min_confidence;
  const plain = mode === "default" && min_confidence === null;
  const save = useMutation({
    mutationFn: () =>
      unwrap(
        client.PUT("/v1/detector-policies/{name}", {
          params: { path: { name } },
          headers: idempotencyKey(),
          body: { mode, min_confidence, reason: reason.trim(), version: policy.version },
        }),
      ),
    onSuccess: () => toast(`Policy of ${name} saved`),
    onError: (error) => toast(problemOf(error).detail ?? "The policy was not saved"),
    onSettled: () => void queryClient.invalidateQueries({ queryKey: policyKeys.detectors }),
  });

  function submit(event: FormEvent) {
    event.preventDefault();
    save.mutate();
  }

  return (
    <form
      onSubmit={submit}
      aria-label={`Policy of ${name}`}
      className="flex max-w-xl flex-col gap-3 *:first:self-start"
    >
      <Segmented label={`Mode of ${name}`} value={mode} onChange={setMode} options={modes} />
      <p className="text-ink-2 text-sm">
        {effects[mode]}
        {effects[mode] !== effects.record &&
          ` Mainstay proposes from a confidence of ${min_confidence ?? siteConfidence}.`}
      </p>
      {policy.changed_at !== null && (
        <p className="break-words text-ink-3 text-xs">
          {detectorModes[policy.mode].label} since <Age at={policy.changed_at} suffix="" />,{" "}
          {policy.changed_by}
          {policy.reason && `: ${policy.reason}`}
        </p>
      )}
      <Field label="Least confidence" hint={`From 0 to 1. Empty: as the site, ${siteConfidence}.`}>
        {(id) => (
          <Input
            id={id}
            type="number"
            min={0}
            max={1}
            step="any"
            value={confidence}
            onChange={(event) => setConfidence(event.target.value)}
            className="max-w-32"
          />
        )}
      </Field>
      <Field
        label="Reason"
        hint={plain ? "Optional for the site default." : "Stored in the history with your name."}
      >
        {(id) => (
          <TextArea
            id={id}
            required={!plain}
            maxLength={2000}
            value={reason}
            onChange={(event) => setReason(event.target.value)}
          />
        )}
      </Field>
      <div>
        <Button
          type="submit"
          kind="primary"
          busy={save.isPending}
          disabled={same || (!plain && reason.trim() === "")}
        >
          Save policy
        </Button>
      </div>
    </form>
  );
}
