import { Link } from "@tanstack/react-router";
import type { AutomatedAction } from "@/api/types";
import { readable } from "@/lib/format";
import { Age } from "@/ui/age";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";

/** Actions that Mainstay took automatically, newest first, each linked to incident. */
export function AutomatedActions({ decisions }: { decisions: AutomatedAction[] }) {
  return (
    <Panel title="Automated actions" about="newest first" flush>
      {decisions.length === 0 ? (
        <div className="px-4 pb-3">
          <Empty title="No automated actions.">
            When a rank or node fails, the chosen plan and its cost appear here.
          </Empty>
        </div>
      ) : (
        <ol>
          {decisions.slice(0, 6).map((decision) => (
            <li
              key={`${decision.incident}${decision.time}${decision.text}`}
              className="grid grid-cols-[6.5rem_minmax(0,1fr)] items-baseline gap-3 border-line border-t px-4 py-2 text-sm"
            >
              <span className="text-ink-3 text-xs">
                <Age at={decision.time} />
              </span>
              <Link
                to="/incidents/$id"
                params={{ id: decision.incident }}
                hash={decision.plan ? "plan" : undefined}
                title={decision.text}
                className="line-clamp-2 text-ink hover:underline"
              >
                {readable(decision.text)}
                {decision.job && <span className="text-ink-3"> · {decision.job}</span>}
              </Link>
            </li>
          ))}
        </ol>
      )}
    </Panel>
  );
}
