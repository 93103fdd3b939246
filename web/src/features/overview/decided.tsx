import { Link } from "@tanstack/react-router";
import type { Decision } from "@/api/types";
import { readable } from "@/lib/format";
import { Age } from "@/ui/age";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";

/** What the machine did without asking, newest first, each with the way to its reasons. */
export function Decided({ decisions }: { decisions: Decision[] }) {
  return (
    <Panel title="Decided by itself" about="newest first; each leads to its reasons" flush>
      {decisions.length === 0 ? (
        <div className="px-4 pb-3">
          <Empty title="No decision was needed.">
            When a rank or a node fails, the plan that was chosen and what it cost stand here.
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
