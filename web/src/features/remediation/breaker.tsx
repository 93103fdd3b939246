/** How much the machine may do by itself, and whether it has reached the limit. */
import { useQuery } from "@tanstack/react-query";
import type { RemediationStatus } from "@/api/types";
import { usePolling } from "@/lib/live";
import { Glyph } from "@/ui/glyph";
import { Panel } from "@/ui/panel";
import { Progress } from "@/ui/progress";
import { QueryView } from "@/ui/query-view";
import { SkeletonRows } from "@/ui/skeleton";
import { breakerText } from "./model";
import { remediationStatusQuery } from "./queries";

export function BreakerPanel() {
  const query = useQuery({ ...remediationStatusQuery(), refetchInterval: usePolling(15_000) });
  return (
    <Panel title="What the machine may do">
      <QueryView query={query} loading={<SkeletonRows rows={2} />}>
        {(status) => <Body status={status} />}
      </QueryView>
    </Panel>
  );
}

function Body({ status }: { status: RemediationStatus }) {
  const { breaker, mode } = status;
  const most = Math.max(1, Math.floor(breaker.share_limit * breaker.fleet));
  return (
    <div className="grid gap-x-10 gap-y-4 md:grid-cols-2">
      <div className="flex items-start gap-2.5 text-sm">
        <span className="mt-1">
          <Glyph
            name={mode === "automatic" ? "check" : "ring"}
            tone={mode === "automatic" ? "healthy" : "validating"}
          />
        </span>
        <div>
          <p className="font-medium">{mode === "automatic" ? "Acts by itself" : "Dry run"}</p>
          <p className="text-ink-2">
            {mode === "automatic"
              ? "Proposals that every rule allows are carried out at once."
              : "It proposes and records what it would do. A person accepts, or the site switches automatic action on."}
          </p>
        </div>
      </div>
      <div className="flex items-start gap-2.5 text-sm">
        <span className="mt-1">
          <Glyph name={breaker.open ? "bang" : "dot"} tone={breaker.open ? "quarantined" : "healthy"} />
        </span>
        <div className="min-w-0 flex-1">
          <p className="font-medium">
            {breaker.open ? "The breaker is open: nothing more by itself" : "The breaker is closed"}
          </p>
          <Progress
            value={Math.min(1, breaker.touched / most)}
            label="Nodes touched, of those allowed"
            className="my-1.5 max-w-md"
          />
          <p className="num text-ink-2">{breakerText(breaker)}.</p>
          {breaker.why && <p className="text-ink-3 text-xs first-letter:uppercase">{breaker.why}.</p>}
        </div>
      </div>
    </div>
  );
}
