import { useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { client, unwrap } from "@/api/client";
import { ActDialog } from "@/ui/act-dialog";
import { useToast } from "@/ui/toast";
import { policyKeys } from "./queries";

interface Props {
  text: string;
  mode: "shadow" | "active";
  tested: boolean;
  onClose: () => void;
}

/** The dialog that uploads overrides. New rules should start in shadow, where they have no effect. */
export function PushOverrides({ text, mode, tested, onClose }: Props) {
  const queryClient = useQueryClient();
  const navigate = useNavigate();
  const toast = useToast();
  const shadow = mode === "shadow";
  return (
    <ActDialog
      title={shadow ? "Upload as shadow" : "Activate now"}
      about={
        shadow
          ? "Creates a version that is evaluated beside the live one without effect. See its results under Shadow."
          : "Creates a version that is in force immediately. It may take nodes out of service."
      }
      verb={shadow ? "Upload as shadow" : "Activate"}
      danger={!shadow}
      run={({ reason, headers }) =>
        unwrap(client.PUT("/v1/policies/xid/overrides", { headers, body: { overrides: text, mode, reason } }))
      }
      onClose={onClose}
      onDone={() => {
        void queryClient.invalidateQueries({ queryKey: policyKeys.all });
        toast(shadow ? "In shadow" : "Active");
        void navigate({ to: "/policies/xid", search: { tab: "versions" } });
      }}
    >
      {!tested && (
        <p className="rounded-md bg-suspect-soft px-3 py-2 text-ink-2 text-sm">
          This text was not tested on history.
        </p>
      )}
    </ActDialog>
  );
}
