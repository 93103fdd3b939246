/** What would mend it, on the ladder of remedies: how far up it is, and whether work has to leave the node. */
import type { Finding } from "@/api/types";
import { cx } from "@/lib/cx";
import { lookOf, remedy as remedyLooks, remedyOrder } from "@/lib/states";
import { evicts, highestRemedy } from "./remedy-model";

export function WouldMend({ findings }: { findings: Finding[] }) {
  const asked = highestRemedy(findings);
  if (asked === "none") return null;
  const place = remedyOrder.indexOf(asked);
  return (
    <div className="mb-4 flex flex-wrap items-center gap-x-4 gap-y-1.5 text-sm">
      <p>
        <span className="text-ink-3">What would mend it: </span>
        <b className="font-semibold">{lookOf(remedyLooks, asked).label}</b>
        <span className="text-ink-3">
          {evicts(asked) ? " · work leaves the node first" : " · the node stays in service"}
        </span>
      </p>
      <ol aria-label="Ladder of remedies" className="flex gap-1">
        {remedyOrder.slice(1).map((rung, index) => (
          <li
            key={rung}
            title={lookOf(remedyLooks, rung).label}
            aria-current={rung === asked ? "step" : undefined}
            className={cx(
              "h-1.5 w-6 rounded-full",
              index < place ? (evicts(asked) ? "bg-suspect" : "bg-validating") : "bg-line-strong/60",
            )}
          >
            <span className="sr-only">{lookOf(remedyLooks, rung).label}</span>
          </li>
        ))}
      </ol>
    </div>
  );
}
