import { useInfiniteQuery } from "@tanstack/react-query";
import type { Policy } from "@/api/types";
import { rulesIn } from "./model";
import { policyVersionsQuery } from "./queries";

/** The overrides in force as text, and the rules of the shadow version. */
export function useOverridesText(policy: Policy | undefined): { active: string | null; shadow: Set<string> } {
  const query = useInfiniteQuery(policyVersionsQuery());
  const versions = query.data?.pages.flatMap((page) => page.items) ?? [];
  const textOf = (version: number | null | undefined) =>
    version == null ? null : (versions.find((item) => item.version === version)?.overrides ?? null);
  return { active: textOf(policy?.version), shadow: rulesIn(textOf(policy?.shadow?.version) ?? "") };
}
