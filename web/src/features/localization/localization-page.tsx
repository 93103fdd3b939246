/** One fault localization: the verdict with its evidence, the unknown nodes, and the rounds. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { useState } from "react";
import { client, unwrap } from "@/api/client";
import type { Localization } from "@/api/types";
import { plural, shortId } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { statusStyleOf } from "@/lib/status-styles";
import { ActDialog } from "@/ui/act-dialog";
import { Age } from "@/ui/age";
import { Button } from "@/ui/button";
import { CopyMenu, CopyText, curl } from "@/ui/copy";
import { Page } from "@/ui/page";
import { QueryView } from "@/ui/query-view";
import { StatePill } from "@/ui/state-pill";
import { useToast } from "@/ui/toast";
import { stateLook } from "./model";
import { localizationKeys, localizationQuery } from "./queries";
import { Rounds } from "./rounds";
import { VerdictPanel } from "./verdict-panel";

const route = getRouteApi("/shell/validation/fault-localizations/$id");

export function LocalizationPage() {
  const { id } = route.useParams();
  const polling = usePolling(5_000, 3_000);
  const query = useQuery({
    ...localizationQuery(id),
    refetchInterval: (q) => (q.state.data && q.state.data.state !== "running" ? false : polling),
  });
  const one = query.data;
  return (
    <Page
      title="Fault localization"
      crumb={
        <Link to="/validation" search={{ tab: "localization" }} className="hover:underline">
          Localizations
        </Link>
      }
      mark={one && <StatePill look={statusStyleOf(stateLook, one.state)} />}
      meta={one && <Meta one={one} />}
      actions={
        <>
          {one?.state === "running" && <CancelLocalization id={id} />}
          <CopyMenu commands={[curl(`/v1/fault-localizations/${id}`)]} />
        </>
      }
    >
      <QueryView query={query}>
        {(data) => (
          <>
            <p className="max-w-4xl text-ink text-sm">
              {data.reason}
              {tells(data) && <span className="block text-ink-2 first-letter:uppercase">{data.reason}</span>}
            </p>
            {data.verdict && <VerdictPanel verdict={data.verdict} />}
            <Rounds rounds={data.rounds} verdict={data.verdict} />
          </>
        )}
      </QueryView>
    </Page>
  );
}

/** The state of the localization, unless the verdict states the same. */
const tells = ({ reason, verdict }: Localization) =>
  reason !== "" && !verdict?.culprits.some((culprit) => culprit.summary === reason);

function Meta({ one }: { one: Localization }) {
  return (
    <>
      <span title={one.nodes.join(", ")}>{plural(one.nodes.length, "node")} tested</span>
      {one.partners.length > 0 && (
        <span title={one.partners.join(", ")}>{plural(one.partners.length, "known-good partner")}</span>
      )}
      <span>
        requested <Age at={one.created_at} />
      </span>
      {one.finished_at !== null && (
        <span>
          ended <Age at={one.finished_at} />
        </span>
      )}
      <CopyText text={one.id} shown={shortId(one.id)} />
    </>
  );
}

function CancelLocalization({ id }: { id: string }) {
  const [asking, setAsking] = useState(false);
  const queryClient = useQueryClient();
  const toast = useToast();
  return (
    <>
      <Button onClick={() => setAsking(true)}>Cancel</Button>
      {asking && (
        <ActDialog
          title="Cancel the localization"
          about="It ends without a verdict. No node is named or cleared."
          verb="Cancel validation"
          hint="Stored with the localization."
          danger
          run={({ reason, headers }) =>
            unwrap(
              client.POST("/v1/fault-localizations/{id}:cancel", {
                params: { path: { id } },
                body: { reason },
                headers,
              }),
            )
          }
          onClose={() => setAsking(false)}
          onDone={() => {
            void queryClient.invalidateQueries({ queryKey: localizationKeys.all });
            toast("Canceled");
          }}
        />
      )}
    </>
  );
}
