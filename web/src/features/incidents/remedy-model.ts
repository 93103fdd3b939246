/** What would mend an incident: the highest rung that any of its standing findings asks for. Pure. */
import type { Finding, Remedy } from "@/api/types";
import { remedyOrder } from "@/lib/states";

export const evicts = (remedy: Remedy) => remedyOrder.indexOf(remedy) >= remedyOrder.indexOf("reset_gpu");

export function highestRemedy(findings: readonly Pick<Finding, "remedy" | "active">[]): Remedy {
  const standing = findings.filter((finding) => finding.active);
  // Where nothing stands any more, what was asked for still tells what the fault was.
  const asked = standing.length > 0 ? standing : findings;
  return asked.reduce<Remedy>(
    (most, { remedy }) => (remedyOrder.indexOf(remedy) > remedyOrder.indexOf(most) ? remedy : most),
    "none",
  );
}
