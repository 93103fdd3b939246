/** Receivers, routes, and the delivery log of messages about incidents. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { client, unwrap } from "@/api/client";
import { problemOf } from "@/api/problem";
import type { DeliveryState, NotificationConfig, NotificationRoute, Receiver } from "@/api/types";
import { SilencesPanel } from "@/features/silences/silences-panel";
import { humanize, plural } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { Age } from "@/ui/age";
import { Button } from "@/ui/button";
import { Empty } from "@/ui/notice";
import { Page } from "@/ui/page";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { Segmented } from "@/ui/segmented";
import { useToast } from "@/ui/toast";
import { ConfigEditor } from "./config-editor";
import { Deliveries } from "./deliveries";
import { conditionsOf, timingOf } from "./model";
import { notificationConfigQuery, notificationKeys } from "./queries";

export function NotificationsPage() {
  const query = useQuery({ ...notificationConfigQuery(), refetchInterval: usePolling(5_000) });
  return (
    <Page title="Notifications" meta="Who gets a message about which incident, and whether it arrived.">
      <QueryView query={query}>{(config) => <Body config={config} />}</QueryView>
    </Page>
  );
}

const states = [
  { value: "all", label: "All" },
  { value: "pending", label: "Pending" },
  { value: "failed", label: "Failed" },
] as const;

function Body({ config }: { config: NotificationConfig }) {
  const [state, setState] = useState<(typeof states)[number]["value"]>("all");
  return (
    <>
      <div className="grid items-start gap-4 xl:grid-cols-2">
        <div className="flex min-w-0 flex-col gap-4">
          <Panel title="Receivers" flush>
            {config.receivers.length === 0 ? (
              <div className="px-4 pb-3">
                <Empty title="No receivers.">Add one to the configuration.</Empty>
              </div>
            ) : (
              <ul>
                {config.receivers.map((receiver) => (
                  <ReceiverRow key={receiver.name} receiver={receiver} />
                ))}
              </ul>
            )}
          </Panel>
          <Panel title="Routes" about="the first route that matches takes the incident" flush>
            {config.routes.length === 0 ? (
              <div className="px-4 pb-3">
                <Empty title="No routes.">Without a route, no message is sent.</Empty>
              </div>
            ) : (
              <ol>
                {config.routes.map((route) => (
                  <RouteRow key={route.name} route={route} />
                ))}
              </ol>
            )}
          </Panel>
          {config.report && (
            <Panel title="Weekly report">
              <p className="break-words text-sm">{config.report}</p>
            </Panel>
          )}
        </div>
        <ConfigEditor config={config} />
      </div>
      <SilencesPanel />
      <Panel
        title="Delivery log"
        aside={<Segmented label="State" value={state} onChange={setState} options={states} />}
        flush
      >
        <Deliveries
          filter={state === "all" ? {} : { state: state satisfies DeliveryState }}
          empty={state === "all" ? "No messages yet." : `No ${state} messages.`}
        />
      </Panel>
    </>
  );
}

function ReceiverRow({ receiver }: { receiver: Receiver }) {
  const queryClient = useQueryClient();
  const toast = useToast();
  const test = useMutation({
    mutationFn: () => unwrap(client.POST("/v1/notifications:test", { body: { receiver: receiver.name } })),
    onSuccess: () => {
      void queryClient.invalidateQueries({ queryKey: notificationKeys.all });
      toast("Test message sent: see the delivery log");
    },
    onError: (error) => toast(problemOf(error).detail ?? "The test message was not sent"),
  });
  return (
    <li className="flex flex-wrap items-center gap-x-4 gap-y-1 border-line border-t px-4 py-2 text-sm">
      <span className="min-w-0 flex-1">
        <span className="block">
          <b className="break-words font-medium">{receiver.name}</b>{" "}
          <span className="text-ink-3">{humanize(receiver.kind)}</span>
        </span>
        <span className="block text-ink-3 text-xs">
          {receiver.last_delivered_at === null ? (
            "Accepted no message yet"
          ) : (
            <>
              Last accepted a message <Age at={receiver.last_delivered_at} />
            </>
          )}
          {receiver.pending > 0 && ` · ${plural(receiver.pending, "message")} pending`}
        </span>
        {receiver.missing_secrets.length > 0 && !receiver.error && (
          <span className="block text-quarantined text-xs">
            The service cannot read the secret {receiver.missing_secrets.join(", ")}
          </span>
        )}
        {receiver.error && (
          <span className="block break-words text-quarantined text-xs">{receiver.error}</span>
        )}
      </span>
      <Button busy={test.isPending} onClick={() => test.mutate()} aria-label={`Test ${receiver.name}`}>
        Test
      </Button>
    </li>
  );
}

function RouteRow({ route }: { route: NotificationRoute }) {
  return (
    <li className="border-line border-t px-4 py-2 text-sm">
      <p className="flex flex-wrap gap-x-2">
        <b className="font-medium">{route.name}</b>
        <span>{route.receivers.length > 0 ? `to ${route.receivers.join(", ")}` : "sends nothing"}</span>
      </p>
      <p className="text-ink-2 text-xs">{conditionsOf(route).join(" · ")}</p>
      <p className="text-ink-3 text-xs">
        {timingOf(route).join(" · ")}
        {route.proceeds && " · later routes are tried as well"}
      </p>
    </li>
  );
}
