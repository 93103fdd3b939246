/** Give a node's GPUs back to whoever needs them: what was measured until then is kept, the rest is UNKNOWN. */
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { client, unwrap } from "@/api/client";
import type { Validation } from "@/api/types";
import { ActDialog } from "@/ui/act-dialog";
import { Button } from "@/ui/button";
import { useToast } from "@/ui/toast";
import { validationKeys } from "./queries";
import { settled } from "./words";

/** The button, where there is something to call off. */
export function CallOff({ validation }: { validation: Validation }) {
  const [asking, setAsking] = useState(false);
  const queryClient = useQueryClient();
  const say = useToast();
  if (!asking && (settled(validation) || validation.cancelled_at !== null)) return null;
  const { id, node } = validation;
  const refresh = () => {
    for (const queryKey of [validationKeys.all, validationKeys.sweeps])
      void queryClient.invalidateQueries({ queryKey });
  };
  return (
    <>
      <Button aria-label={`Call off on ${node}`} onClick={() => setAsking(true)}>
        Call off
      </Button>
      {asking && (
        <ActDialog
          title={`Call off the validation of ${node}`}
          about="The node gives its GPUs back within five seconds and keeps what it measured. What was not measured stays unknown: that is no pass."
          verb="Call off"
          hint="Kept with the validation."
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
            say("Called off");
          }}
        />
      )}
    </>
  );
}
