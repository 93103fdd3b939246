/** The dialog that accepts or dismisses a proposal. */
import { useQueryClient } from "@tanstack/react-query";
import { client, unwrap } from "@/api/client";
import type { Remediation } from "@/api/types";
import { type Act, ActDialog } from "@/ui/act-dialog";
import { useToast } from "@/ui/toast";
import { actionText, decisiveRule } from "./model";
import { remediationKeys } from "./queries";

export type Decision = "accept" | "dismiss";

interface Props {
  proposal: Remediation;
  decision: Decision;
  onClose: () => void;
}

export function Decide({ proposal, decision, onClose }: Props) {
  const queryClient = useQueryClient();
  const toast = useToast();
  const accept = decision === "accept";
  const against = decisiveRule(proposal.rules);
  const refresh = () => {
    for (const key of [remediationKeys.all, ["nodes"], ["incidents"], ["overview"]])
      void queryClient.invalidateQueries({ queryKey: key });
  };

  function run({ reason, headers }: Act) {
    const options = { params: { path: { id: proposal.id } }, body: { reason }, headers };
    const asked = accept
      ? client.POST("/v1/remediations/{id}:accept", options)
      : client.POST("/v1/remediations/{id}:dismiss", options);
    return unwrap<Remediation>(asked).catch((error: unknown) => {
      refresh();
      throw error;
    });
  }

  return (
    <ActDialog
      title={accept ? "Accept the proposal" : "Dismiss the proposal"}
      about={
        <>
          {actionText(proposal)}.{" "}
          {accept
            ? against
              ? `The rule ${against.name} is against it: ${against.reason}`
              : "All rules allow it."
            : "Mainstay does nothing. If the fault is found again, Mainstay may propose it again."}
        </>
      }
      verb={accept ? "Accept" : "Dismiss"}
      run={run}
      onClose={onClose}
      onDone={() => {
        refresh();
        toast(accept ? "Accepted" : "Dismissed");
      }}
    />
  );
}
