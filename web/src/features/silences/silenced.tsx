/** A strip on the page of a node or an incident about which no messages are sent. */
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { usePolling } from "@/lib/live";
import { Clock } from "@/ui/age";
import { limitsOf } from "./model";
import { type SilenceFilter, silencesQuery } from "./queries";

export function Silenced({ about }: { about: SilenceFilter }) {
  const query = useQuery({ ...silencesQuery(about), refetchInterval: usePolling(15_000) });
  return query.data?.map((silence) => (
    <p key={silence.id} role="status" className="rounded-md bg-sunken px-3 py-2 text-sm">
      Silenced by {silence.actor} until <Clock at={silence.ends_at} />: {silence.reason}. No messages are sent
      {limitsOf(silence).length > 0 && ` about ${limitsOf(silence).join(" · ")}`}.{" "}
      <Link to="/notifications" className="text-accent hover:underline">
        Silences
      </Link>
    </p>
  ));
}
