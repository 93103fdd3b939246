import { useInfiniteQuery } from "@tanstack/react-query";
import { nodesQuery } from "@/features/nodes/queries";

/** The cohorts of the fleet, as suggestions. */
export function Cohorts({ id }: { id: string }) {
  const nodes = useInfiniteQuery(nodesQuery());
  const known = new Set(nodes.data?.pages.flatMap((page) => page.items.map((node) => node.cohort)));
  return (
    <datalist id={id}>
      {[...known].filter(Boolean).map((cohort) => (
        <option key={cohort} value={cohort} />
      ))}
    </datalist>
  );
}
