import type { RemediationState } from "@/api/types";
import { oneOf, type RawSearch, text } from "@/lib/search";
import { proposalOrder } from "@/lib/status-styles";

export interface RemediationSearch {
  state?: RemediationState;
  node?: string;
}

export const parseRemediationSearch = (raw: RawSearch): RemediationSearch => ({
  state: oneOf(raw, "state", proposalOrder),
  node: text(raw, "node"),
});
