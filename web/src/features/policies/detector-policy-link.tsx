import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { meQuery, seesFleet } from "@/features/auth/queries";
import { changedDetectorsQuery } from "./queries";

/** Who lets a detector only propose or only record, and why; nothing for a detector with the default policy. */
export function DetectorPolicyLink({ detector }: { detector: string }) {
  const me = useQuery(meQuery()).data;
  const query = useQuery({ ...changedDetectorsQuery(), enabled: me !== undefined && seesFleet(me) });
  const policy = query.data?.items.find((item) => item.name === detector)?.policy;
  if (!policy || policy.mode === "default") return null;
  return (
    <Link
      to="/policies/detectors"
      search={{ q: detector, detector }}
      className="ml-1.5 text-accent hover:underline"
    >
      {policy.mode === "record" ? "recorded only" : "only proposes"} by policy of {policy.changed_by}:{" "}
      {policy.reason}
    </Link>
  );
}
