/** A switch of a sweep's schedule. It reports a concurrent change instead of overwriting it. */
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { client, unwrap } from "@/api/client";
import type { Sweep } from "@/api/types";
import { ErrorNotice } from "@/ui/notice";
import { Switch } from "@/ui/switch";
import { validationKeys } from "./queries";

export function SweepSwitch({ sweep }: { sweep: Sweep }) {
  const queryClient = useQueryClient();
  const turn = useMutation({
    mutationFn: (enabled: boolean) =>
      unwrap(
        client.PATCH("/v1/sweeps/{id}", {
          params: { path: { id: sweep.id } },
          body: { version: sweep.version, enabled },
        }),
      ),
    onSettled: () => queryClient.invalidateQueries({ queryKey: validationKeys.sweeps }),
  });
  return (
    <>
      <Switch
        label={`Schedule of ${sweep.name}`}
        on={turn.isPending ? turn.variables : sweep.enabled}
        busy={turn.isPending}
        onChange={(on) => turn.mutate(on)}
      />
      {turn.isError && <ErrorNotice error={turn.error} />}
    </>
  );
}
