/** The editor of routes and receivers. The service checks the text and names the place of a fault. */
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useId, useState } from "react";
import { client, unwrap } from "@/api/client";
import type { NotificationConfig } from "@/api/types";
import { Age } from "@/ui/age";
import { Button } from "@/ui/button";
import { ErrorNotice } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { useToast } from "@/ui/toast";
import { notificationKeys } from "./queries";

const EXAMPLE = `[receivers.oncall]
kind = "pagerduty"
routing_key_secret = "pagerduty-key"  # a file in the secrets directory of the service

[[routes]]
name = "operators"
receivers = ["oncall"]
needs_operator = true`;

export function ConfigEditor({ config }: { config: NotificationConfig }) {
  const field = useId();
  const hint = useId();
  const queryClient = useQueryClient();
  const toast = useToast();
  const [text, setText] = useState(config.text);
  const [base, setBase] = useState(config.version);
  const changed = text !== config.text;
  const newer = config.version !== base;
  const store = useMutation({
    mutationFn: () => unwrap(client.PUT("/v1/notifications/config", { body: { text, replaces: base } })),
    onSuccess: (stored) => {
      setBase(stored.version);
      setText(stored.text);
      void queryClient.invalidateQueries({ queryKey: notificationKeys.all });
      toast("In force");
    },
  });

  function submit(event: FormEvent) {
    event.preventDefault();
    store.mutate();
  }

  return (
    <Panel
      title="Configuration"
      about={
        config.created_at === null ? (
          "nothing is configured, so nothing is sent"
        ) : (
          <>
            version {config.version} by {config.actor}, <Age at={config.created_at} />
          </>
        )
      }
    >
      <form onSubmit={submit} className="flex flex-col gap-3">
        <label htmlFor={field} className="sr-only">
          Routes and receivers in TOML
        </label>
        <textarea
          id={field}
          aria-describedby={hint}
          value={text}
          placeholder={EXAMPLE}
          spellCheck={false}
          maxLength={200_000}
          rows={Math.min(32, Math.max(12, text.split("\n").length + 1))}
          onChange={(event) => setText(event.target.value)}
          className="w-full rounded-md border border-line-strong bg-sunken px-3 py-2 font-mono text-ink text-xs leading-5 placeholder:text-ink-3"
        />
        <p id={hint} className="text-ink-3 text-xs">
          TOML. Secrets are files in <code className="break-all font-mono">{config.secrets_dir}</code> on the
          hosts of the service. Links in messages begin with{" "}
          <code className="break-all font-mono">{config.dashboard_url}</code>.
        </p>
        {store.isError && <ErrorNotice error={store.error} />}
        {newer && (
          <p className="rounded-md bg-suspect-soft px-3 py-2 text-sm">
            Version {config.version} by {config.actor} is in force by now.{" "}
            <button
              type="button"
              className="font-medium text-accent hover:underline"
              onClick={() => {
                setText(config.text);
                setBase(config.version);
              }}
            >
              Show it
            </button>
          </p>
        )}
        <div className="flex justify-end gap-2">
          {changed && <Button onClick={() => setText(config.text)}>Undo changes</Button>}
          <Button type="submit" kind="primary" busy={store.isPending} disabled={!changed || newer}>
            Put in force
          </Button>
        </div>
      </form>
    </Panel>
  );
}
