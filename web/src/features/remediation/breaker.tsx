/** The mode of remediation, and whether its limit is reached. */
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
    <Panel title="Remediation limits">
      <QueryView query={query} loading={<SkeletonRows rows={2} />}>
        {(status) => <Body status={status} />}
      </QueryView>
    </Panel>
  );
}

function Body({ status }: { status: RemediationStatus }) {
  const { breaker, mode } = status;
  const most = Math.max(1, Math.floor(breaker.max_drained_ratio * breaker.fleet));
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
          <p className="font-medium">{mode === "automatic" ? "Automatic" : "Dry run"}</p>
          <p className="text-ink-2">
            {mode === "automatic"
              ? "Mainstay carries out proposals that every rule allows."
              : "Mainstay proposes and records actions. An operator accepts them, or the site enables automatic mode."}
          </p>
        </div>
      </div>
      <div className="flex items-start gap-2.5 text-sm">
        <span className="mt-1">
          <Glyph name={breaker.open ? "bang" : "dot"} tone={breaker.open ? "quarantined" : "healthy"} />
        </span>
        <div className="min-w-0 flex-1">
          <p className="font-medium">
            {breaker.open ? "The breaker is open: no further automatic actions" : "The breaker is closed"}
          </p>
          <Progress
            value={Math.min(1, breaker.touched / most)}
            label="Nodes drained, of the allowed number"
            className="my-1.5 max-w-md"
          />
          <p className="num text-ink-2">{breakerText(breaker)}.</p>
          {breaker.reason && <p className="text-ink-3 text-xs first-letter:uppercase">{breaker.reason}.</p>}
        </div>
      </div>
    </div>
  );
}
