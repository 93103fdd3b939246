/** Cancel a validation: completed results are kept, the rest is UNKNOWN. */
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { client, unwrap } from "@/api/client";
import type { Validation } from "@/api/types";
import { ActDialog } from "@/ui/act-dialog";
import { Button } from "@/ui/button";
import { useToast } from "@/ui/toast";
import { settled } from "./labels";
import { validationKeys } from "./queries";

/** The cancel button, for a validation that has not ended. */
export function CancelValidation({ validation }: { validation: Validation }) {
  const [asking, setAsking] = useState(false);
  const queryClient = useQueryClient();
  const toast = useToast();
  if (!asking && (settled(validation) || validation.cancelled_at !== null)) return null;
  const { id, node } = validation;
  const refresh = () => {
    for (const queryKey of [validationKeys.all, validationKeys.sweeps])
      void queryClient.invalidateQueries({ queryKey });
  };
  return (
    <>
      <Button aria-label={`Cancel validation on ${node}`} onClick={() => setAsking(true)}>
        Cancel
      </Button>
      {asking && (
        <ActDialog
          title={`Cancel the validation of ${node}`}
          about="The node releases its GPUs within 5 s and keeps completed results. Unfinished benchmarks are recorded as UNKNOWN, which does not pass."
          verb="Cancel validation"
          hint="Stored with the validation."
          danger
          run={({ reason, headers }) =>
            unwrap(
              client.POST("/v1/validations/{id}:cancel", {
                params: { path: { id } },
                body: { reason },
                headers,
              }),
            ).catch((error: unknown) => {
              refresh();
              throw error;
            })
          }
          onClose={() => setAsking(false)}
          onDone={() => {
            refresh();
            toast("Canceled");
          }}
        />
      )}
    </>
  );
}
