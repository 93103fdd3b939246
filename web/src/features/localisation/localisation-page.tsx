/** One localisation: the verdict with its evidence, who stays unknown, and the rounds as they come. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { useState } from "react";
import { client, unwrap } from "@/api/client";
import type { Localisation } from "@/api/types";
import { plural, shortId } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { lookOf } from "@/lib/states";
import { ActDialog } from "@/ui/act-dialog";
import { Age } from "@/ui/age";
import { Button } from "@/ui/button";
import { CopyMenu, CopyText, curl } from "@/ui/copy";
import { Page } from "@/ui/page";
import { QueryView } from "@/ui/query-view";
import { StatePill } from "@/ui/state-pill";
import { useToast } from "@/ui/toast";
import { stateLook } from "./model";
import { localisationKeys, localisationQuery } from "./queries";
import { Rounds } from "./rounds";
import { VerdictPanel } from "./verdict-panel";

const route = getRouteApi("/shell/validation/localisations/$id");

export function LocalisationPage() {
  const { id } = route.useParams();
  const polling = usePolling(5_000, 3_000);
  const query = useQuery({
    ...localisationQuery(id),
    refetchInterval: (q) => (q.state.data && q.state.data.state !== "running" ? false : polling),
  });
  const one = query.data;
  return (
    <Page
      title="Localisation"
      crumb={
        <Link to="/validation" search={{ tab: "localisation" }} className="hover:underline">
          Localisations
        </Link>
      }
      mark={one && <StatePill look={lookOf(stateLook, one.state)} />}
      meta={one && <Meta one={one} />}
      actions={
        <>
          {one?.state === "running" && <CallOff id={id} />}
          <CopyMenu commands={[curl(`/v1/localisations/${id}`)]} />
        </>
      }
    >
      <QueryView query={query}>
        {(data) => (
          <>
            <p className="max-w-4xl text-ink text-sm">
              {data.why}
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

/** What the service says of it, unless the verdict below says the same. */
const tells = ({ reason, verdict }: Localisation) =>
  reason !== "" && !verdict?.culprits.some((culprit) => culprit.summary === reason);

function Meta({ one }: { one: Localisation }) {
  return (
    <>
      <span title={one.nodes.join(", ")}>{plural(one.nodes.length, "node")} looked at</span>
      {one.partners.length > 0 && (
        <span title={one.partners.join(", ")}>{plural(one.partners.length, "known-good partner")}</span>
      )}
      <span>
        asked <Age at={one.created_at} />
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

function CallOff({ id }: { id: string }) {
  const [asking, setAsking] = useState(false);
  const queryClient = useQueryClient();
  const say = useToast();
  return (
    <>
      <Button onClick={() => setAsking(true)}>Call off</Button>
      {asking && (
        <ActDialog
          title="Call off the localisation"
          about="It ends without a verdict: nobody is named, and nobody is cleared."
          verb="Call off"
          hint="Kept with the localisation."
          danger
          run={({ reason, headers }) =>
            unwrap(
              client.POST("/v1/localisations/{id}:cancel", {
                params: { path: { id } },
                body: { reason },
                headers,
              }),
            )
          }
          onClose={() => setAsking(false)}
          onDone={() => {
            void queryClient.invalidateQueries({ queryKey: localisationKeys.all });
            say("Called off");
          }}
        />
      )}
    </>
  );
}
