import { useInfiniteQuery } from "@tanstack/react-query";
import { nodesQuery } from "@/features/nodes/queries";

/** The cohorts of the fleet, as suggestions. */
export function Cohorts({ id }: { id: string }) {
  const nodes = useInfiniteQuery(nodesQuery({ facets: true }));
  return (
    <datalist id={id}>
      {nodes.data?.pages[0]?.facets?.cohort.map(({ value }) => (
        <option key={value} value={value} />
      ))}
    </datalist>
  );
}
