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

/** New rules should begin in shadow, where they say what they would do and do nothing. */
export function PushOverrides({ text, mode, tested, onClose }: Props) {
  const queryClient = useQueryClient();
  const navigate = useNavigate();
  const say = useToast();
  const shadow = mode === "shadow";
  return (
    <ActDialog
      title={shadow ? "Push as shadow" : "Activate at once"}
      about={
        shadow
          ? "A new version that judges beside the live one and changes nothing. What it would have said stands under Shadow."
          : "A new version that judges from now on. It may take nodes out of service."
      }
      verb={shadow ? "Push as shadow" : "Activate"}
      danger={!shadow}
      run={({ reason, headers }) =>
        unwrap(client.PUT("/v1/policies/xid/overrides", { headers, body: { overrides: text, mode, reason } }))
      }
      onClose={onClose}
      onDone={() => {
        void queryClient.invalidateQueries({ queryKey: policyKeys.all });
        say(shadow ? "In shadow" : "Active");
        void navigate({ to: "/policies/xid", search: { tab: "versions" } });
      }}
    >
      {!tested && (
        <p className="rounded-md bg-suspect-soft px-3 py-2 text-ink-2 text-sm">
          This text was not tested against history.
        </p>
      )}
    </ActDialog>
  );
}
