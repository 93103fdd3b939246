/** The dialog that requests a validation. The task waits at the service until the node fetches it. */
import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { client, idempotencyKey, unwrap } from "@/api/client";
import { nodesQuery } from "@/features/nodes/queries";
import { age, plural } from "@/lib/format";
import { Button } from "@/ui/button";
import { CopyMenu, curl } from "@/ui/copy";
import { Dialog } from "@/ui/dialog";
import { ErrorNotice } from "@/ui/notice";
import { Select } from "@/ui/select";
import { Switch } from "@/ui/switch";
import { suitesQuery, validationKeys } from "./queries";

/** How often a failed measurement is repeated; useful on shared machines. */
const REMEASURE_OPTIONS = [0, 1, 2, 3, 4, 5].map((times) => ({
  value: String(times),
  label: times === 0 ? "No repeats" : `Up to ${plural(times, "repeat")}`,
}));

interface Props {
  open: boolean;
  onOpenChange: (open: boolean) => void;
  /** Set on the page of a node. */
  node?: string;
}

export function RunValidation({ open, onOpenChange, node: fixed }: Props) {
  return (
    <Dialog
      open={open}
      onOpenChange={onOpenChange}
      title={fixed ? `Validate ${fixed}` : "Run a validation"}
      about="Benchmarks use the node's devices and would slow down a job on it."
    >
      <Form fixed={fixed} done={() => onOpenChange(false)} />
    </Dialog>
  );
}

function Form({ fixed, done }: { fixed?: string; done: () => void }) {
  const suites = useQuery(suitesQuery());
  const nodes = useInfiniteQuery({ ...nodesQuery(), enabled: !fixed });
  const [chosenSuite, setSuite] = useState<string>();
  const [chosenNode, setNode] = useState<string>();
  const [remeasure, setRemeasure] = useState(0);
  const [allowOccupied, setAllowOccupied] = useState(false);
  const [key] = useState(idempotencyKey); // one dialog is one request, for any number of clicks
  const queryClient = useQueryClient();
  const navigate = useNavigate();
  const names = nodes.data?.pages.flatMap((page) => page.items.map((n) => n.name)) ?? [];
  const node = fixed ?? chosenNode ?? names[0];
  const suite = suites.data?.find((s) => s.name === chosenSuite) ?? suites.data?.[0];
  const order = useMutation({
    mutationFn: (body: { node: string; suite: string; remeasure: number; allow_occupied: boolean }) =>
      unwrap(client.POST("/v1/validations", { body, headers: key })),
    onSuccess: (validation) => {
      void queryClient.invalidateQueries({ queryKey: validationKeys.all });
      done();
      void navigate({ to: "/validation/$id", params: { id: validation.id } });
    },
  });
  const body = suite && node && { node, suite: suite.name, remeasure, allow_occupied: allowOccupied };
  return (
    <div className="flex flex-col gap-4">
      {suites.isError && <ErrorNotice error={suites.error} onRetry={() => void suites.refetch()} />}
      <div className="flex flex-wrap gap-3">
        {!fixed && node && (
          <Select
            label="Node"
            value={node}
            onChange={setNode}
            groups={[{ options: names.map((name) => ({ value: name, label: name })) }]}
          />
        )}
        {suite && (
          <Select
            label="Suite"
            value={suite.name}
            onChange={setSuite}
            groups={[{ options: (suites.data ?? []).map((s) => ({ value: s.name, label: s.name })) }]}
          />
        )}
        <Select
          label="Repeat failed measurements"
          value={String(remeasure)}
          onChange={(text) => setRemeasure(Number(text))}
          groups={[{ options: REMEASURE_OPTIONS }]}
        />
      </div>
      {suite && (
        <p className="text-ink-2 text-sm">
          {plural(suite.benchmarks.length, "benchmark")}, about {age(suite.expected_seconds)}:{" "}
          {suite.benchmarks.map((b) => b.name).join(", ")}.
        </p>
      )}
      <p className="flex items-center gap-3 text-ink-2 text-sm">
        <Switch label="Allow occupied" on={allowOccupied} onChange={setAllowOccupied} />
        Run even if a job runs on the node
      </p>
      {order.isError && <ErrorNotice error={order.error} />}
      <div className="flex justify-end gap-2">
        {body && <CopyMenu commands={[curl("/v1/validations", body)]} />}
        <Button
          kind="primary"
          icon="play"
          busy={order.isPending}
          disabled={!body}
          onClick={() => body && order.mutate(body)}
        >
          Run validation
        </Button>
      </div>
    </div>
  );
}
