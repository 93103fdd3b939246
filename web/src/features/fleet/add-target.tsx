import { useMutation, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { client, idempotencyKey, unwrap } from "@/api/client";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Field, Input } from "@/ui/field";
import { ErrorNotice } from "@/ui/notice";
import { useToast } from "@/ui/toast";
import { fleetKeys } from "./queries";

export function AddTarget({ onClose }: { onClose: () => void }) {
  const [url, setUrl] = useState("");
  const [node, setNode] = useState("");
  const [interval, setPause] = useState("15");
  const [headers] = useState(idempotencyKey);
  const queryClient = useQueryClient();
  const toast = useToast();
  const add = useMutation({
    mutationFn: () =>
      unwrap<unknown>(
        client.POST("/v1/ingest/dcgm-targets", {
          headers,
          body: {
            url: url.trim(),
            node: node.trim() || null,
            interval_seconds: Number(interval),
            enabled: true,
          },
        }),
      ),
    onSuccess: () => {
      void queryClient.invalidateQueries({ queryKey: fleetKeys.targets });
      toast("Target added");
      onClose();
    },
  });

  function submit(event: FormEvent) {
    event.preventDefault();
    add.mutate();
  }

  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title="Add a dcgm-exporter target"
      about="The service fetches its metrics and stores them for the node."
    >
      <form onSubmit={submit} className="flex flex-col gap-4">
        <Field label="Address" hint="The URL that Prometheus would scrape.">
          {(id) => (
            <Input
              id={id}
              autoFocus
              required
              type="url"
              placeholder="http://rack01-node1:9400/metrics"
              value={url}
              onChange={(event) => setUrl(event.target.value)}
            />
          )}
        </Field>
        <Field
          label="Node"
          hint="The node of the metrics. Leave empty to use the host label of the exporter."
        >
          {(id) => <Input id={id} value={node} onChange={(event) => setNode(event.target.value)} />}
        </Field>
        <Field label="Interval (seconds)">
          {(id) => (
            <Input
              id={id}
              required
              type="number"
              min={1}
              max={30}
              step="any"
              value={interval}
              onChange={(event) => setPause(event.target.value)}
              className="max-w-32"
            />
          )}
        </Field>
        {add.isError && <ErrorNotice error={add.error} />}
        <div className="flex justify-end gap-2">
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" kind="primary" busy={add.isPending}>
            Add target
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
