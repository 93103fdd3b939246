/** The recommended action on the scale of all actions, and whether work has to leave the node first. */
import type { Finding } from "@/api/types";
import { cx } from "@/lib/cx";
import { recommendedActionOrder, statusStyleOf, recommendedAction as styles } from "@/lib/status-styles";
import { Term } from "@/ui/term";
import { evicts, strongestAction } from "./recommended-action-model";

export function RecommendedActionLine({ findings }: { findings: Finding[] }) {
  const action = strongestAction(findings);
  if (action === "none") return null;
  const place = recommendedActionOrder.indexOf(action);
  return (
    <div className="mb-4 flex flex-wrap items-center gap-x-4 gap-y-1.5 text-sm">
      <p>
        <span className="text-ink-3">
          <Term name="recommended action">Recommended action</Term>:{" "}
        </span>
        <b className="font-semibold">{statusStyleOf(styles, action).label}</b>
        <span className="text-ink-3">
          {evicts(action) ? " · work leaves the node first" : " · the node stays in service"}
        </span>
      </p>
      <ol aria-label="Actions from mildest to strongest" className="flex gap-1">
        {recommendedActionOrder.slice(1).map((level, index) => (
          <li
            key={level}
            title={statusStyleOf(styles, level).label}
            aria-current={level === action ? "step" : undefined}
            className={cx(
              "h-1.5 w-6 rounded-full",
              index < place ? (evicts(action) ? "bg-suspect" : "bg-validating") : "bg-line-strong/60",
            )}
          >
            <span className="sr-only">{statusStyleOf(styles, level).label}</span>
          </li>
        ))}
      </ol>
    </div>
  );
}
