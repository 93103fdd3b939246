/** What a run of the sweep in a form would do now. */
import { useQuery } from "@tanstack/react-query";
import { duration, integer, plural } from "@/lib/format";
import { ErrorNotice } from "@/ui/notice";
import { Skeleton } from "@/ui/skeleton";
import { sweepPreviewQuery } from "./queries";
import { inZone, localZone, type SweepBody } from "./sweep-form";

const whySkipped = { job: "with a running job", silent: "without reports" };

export function SweepPreview({ body }: { body: SweepBody }) {
  const preview = useQuery(sweepPreviewQuery(body));
  if (preview.isError) return <ErrorNotice error={preview.error} />;
  if (!preview.data) return <Skeleton className="h-16" />;
  const { matched, validated, nodes, skipped, seconds, node_hours, measured, next_runs } = preview.data;
  const zone = body.run_at == null ? body.timezone : localZone();
  return (
    <section aria-label="Preview" className="flex flex-col gap-1 rounded-md bg-sunken px-3 py-2 text-sm">
      <p>
        A run now would validate <b className="font-semibold">{plural(validated, "node")}</b> of{" "}
        {integer(matched)} that match.
        {skipped.length > 0 &&
          ` Not ${skipped.map(({ reason, count }) => `${integer(count)} ${whySkipped[reason]}`).join(" and ")}.`}
      </p>
      {validated > 0 && (
        <>
          <p>
            It would take about {duration(seconds)} and {node_hours.toFixed(node_hours < 10 ? 1 : 0)}{" "}
            node-hours. {measured > 0 && `Measured: the time of ${plural(measured, "node")}. `}
            {measured < validated && `Estimated by the suite: ${plural(validated - measured, "node")}.`}
          </p>
          <details>
            <summary className="cursor-pointer text-ink-2 text-xs">
              {nodes.length < validated ? `First ${nodes.length} nodes` : "Nodes"}
            </summary>
            {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a long list scrolls by keyboard */}
            <p tabIndex={0} className="mt-1 max-h-24 overflow-auto break-words font-mono text-xs">
              {nodes.join(" ")}
            </p>
          </details>
        </>
      )}
      <p className="text-ink-2 text-xs">
        {next_runs.length > 0
          ? `Next: ${next_runs.map((time) => inZone(time, zone)).join("; ")} (${zone}).`
          : "It runs on request."}
      </p>
    </section>
  );
}
