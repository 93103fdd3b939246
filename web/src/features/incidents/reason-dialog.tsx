import { useQueryClient } from "@tanstack/react-query";
import { client, unwrap } from "@/api/client";
import { type Act, ActDialog } from "@/ui/act-dialog";
import { useToast } from "@/ui/toast";
import { incidentKeys } from "./queries";

export type Transition = "acknowledge" | "close";

const words: Record<Transition, { title: string; about: string; done: string; verb: string }> = {
  acknowledge: {
    title: "Acknowledge the incident",
    about: "Shows that an operator is working on it. The incident stays open.",
    done: "Acknowledged",
    verb: "Acknowledge",
  },
  close: {
    title: "Close the incident",
    about: "The history is kept. If the fault is found again, a new incident opens.",
    done: "Closed",
    verb: "Close incident",
  },
};

interface Props {
  id: string;
  transition: Transition;
  onClose: () => void;
}

export function ReasonDialog({ id, transition, onClose }: Props) {
  const queryClient = useQueryClient();
  const toast = useToast();
  const word = words[transition];
  const run = ({ reason, headers }: Act) => {
    const options = { params: { path: { id } }, body: { reason }, headers };
    return unwrap(
      transition === "close"
        ? client.POST("/v1/incidents/{id}:close", options)
        : client.POST("/v1/incidents/{id}:acknowledge", options),
    );
  };
  return (
    <ActDialog
      title={word.title}
      about={word.about}
      verb={word.verb}
      hint="Stored in the incident's history with your name."
      run={run}
      onClose={onClose}
      onDone={() => {
        void queryClient.invalidateQueries({ queryKey: incidentKeys.all });
        void queryClient.invalidateQueries({ queryKey: ["overview"] });
        toast(word.done);
      }}
    />
  );
}
