/** A post-mortem as a document. All times are UTC, as in the Markdown. */
import type { ReactNode } from "react";
import type { PostMortem } from "@/api/types";
import { humanize, namedNumber, percent, readable } from "@/lib/format";
import { iso } from "@/lib/time";
import { Facts, Stat } from "@/ui/facts";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { count, culpritFacts, gpuHours, known, seconds, sum, timeFacts, UNKNOWN } from "./model";
import { Records } from "./records";

export function PostMortemView({ found }: { found: PostMortem }) {
  return (
    <>
      <Summary found={found} />
      <Impact found={found} />
      <Panel title="Timeline" about="UTC">
        <Records
          label="Timeline"
          header={["Time", "Event", "Text"]}
          rows={found.timeline.map((entry, at) => ({
            key: String(at),
            cells: [<Moment key="time" at={entry.time} />, humanize(entry.kind), readable(entry.text)],
          }))}
        />
      </Panel>
      <Evidence found={found} />
      <Decisions found={found} />
      <Cost found={found} />
      <Comments found={found} />
      <p className="text-ink-3 text-xs">As of {iso(found.created_at)}.</p>
    </>
  );
}

const facts = (pairs: [string, string][]) => pairs.map(([name, value]) => ({ name, value }));

function Moment({ at }: { at: number }) {
  return (
    <time dateTime={iso(at)} className="num whitespace-nowrap text-ink-2">
      {iso(at)}
    </time>
  );
}

function Summary({ found }: { found: PostMortem }) {
  const { times } = found;
  return (
    <Panel title="Summary">
      {found.incident.summary && (
        <p className="mb-4 max-w-prose text-ink">{readable(found.incident.summary)}</p>
      )}
      <div className="mb-4 grid gap-4 sm:grid-cols-3">
        <Stat value={seconds(times.detection_seconds)} name="Time to detect" />
        <Stat value={seconds(times.acknowledge_seconds, "not acknowledged")} name="Time to acknowledge" />
        <Stat value={seconds(times.recovery_seconds, "not recovered")} name="Time to recover" />
      </div>
      <div className="grid gap-x-8 gap-y-4 md:grid-cols-2">
        <Facts facts={facts(culpritFacts(found))} className="content-start" />
        <Facts facts={facts(timeFacts(found))} className="content-start" />
      </div>
    </Panel>
  );
}

function Impact({ found: { impact } }: { found: PostMortem }) {
  const total = (text: string) => sum(text, impact.is_partial);
  return (
    <Panel title="Impact">
      <div className="mb-4 grid gap-4 sm:grid-cols-3">
        <Stat value={total(gpuHours(impact.idle_gpu_hours))} name="GPU hours idle" />
        <Stat value={total(count(impact.steps_lost))} name="Steps lost" />
        <Stat value={total(count(impact.gpus))} name="GPUs" />
      </div>
      <Records
        label="Jobs"
        empty="The incident names no job."
        header={["Job", "GPUs", "Stood still", "GPU hours idle", "Steps lost"]}
        rows={impact.jobs.map((job) => ({
          key: job.id,
          cells: [
            job.name,
            count(job.gpus),
            seconds(job.stopped_seconds),
            gpuHours(job.idle_gpu_hours),
            count(job.steps_lost),
          ],
        }))}
      />
    </Panel>
  );
}

function Evidence({ found }: { found: PostMortem }) {
  const more = found.findings_total - found.findings.length;
  return (
    <Panel title="Evidence" about={more > 0 ? `${count(more)} further findings are not listed` : undefined}>
      <Records
        label="Findings"
        empty="No findings."
        header={["Time", "Finding", "Where", "Confidence", "Evidence"]}
        rows={found.findings.map((finding, at) => ({
          key: String(at),
          cells: [
            <Moment key="time" at={finding.time} />,
            `${humanize(finding.kind)} (${finding.detector})`,
            Object.entries(finding.entity)
              .filter(([, value]) => value !== null)
              .map(([name, value]) => `${name} ${value}`)
              .join(", "),
            percent(finding.confidence, 0),
            <Figures key="text" text={finding.evidence.summary} numbers={finding.evidence.numbers} />,
          ],
        }))}
      />
    </Panel>
  );
}

function Figures({ text, numbers }: { text: string; numbers: Record<string, number | null> }) {
  const figures = Object.entries(numbers).map(
    ([name, value]) => `${humanize(name)} ${value === null ? UNKNOWN : namedNumber(name, value)}`,
  );
  return (
    <>
      {readable(text)}
      {figures.length > 0 && <span className="block text-ink-3 text-xs">{figures.join(" · ")}</span>}
    </>
  );
}

function Decisions({ found: { plan, remediations } }: { found: PostMortem }) {
  return (
    <Panel title="Decisions">
      {plan === null ? (
        <Empty title="No recovery plan was made." />
      ) : (
        <Block text={plan.explanation}>
          <Records
            label="Recovery strategies"
            header={["Strategy", "Predicted time", "Predicted cost", "Reason"]}
            rows={plan.alternatives.map((way) => ({
              key: way.strategy,
              cells: [
                humanize(way.strategy) + (way.strategy === plan.chosen ? " (chosen)" : ""),
                way.feasible ? seconds(way.seconds) : "not possible",
                seconds(way.cost_seconds),
                way.reason,
              ],
            }))}
          />
        </Block>
      )}
      {remediations.length > 0 && (
        <Block text="Remediations">
          <Records
            label="Remediations"
            header={["Time", "Action", "State", "Decided by", "Reason and rules"]}
            rows={remediations.map((one) => ({
              key: one.id,
              cells: [
                <Moment key="time" at={one.created_at} />,
                `${humanize(one.recommended_action)}, ${one.node}`,
                humanize(one.state),
                known(one.decided_by),
                [one.reason, ...one.rules.map((rule) => `${humanize(rule.name)}: ${rule.reason}`)].join(
                  " · ",
                ),
              ],
            }))}
          />
        </Block>
      )}
    </Panel>
  );
}

function Block({ text, children }: { text: string; children: ReactNode }) {
  return (
    <div className="mt-4 first:mt-0">
      <p className="mb-2 max-w-prose text-ink-2 text-sm">{text}</p>
      {children}
    </div>
  );
}

function Cost({ found: { recoveries } }: { found: PostMortem }) {
  return (
    <Panel title="Cost" about="predicted against actual time, to the first new step">
      <Records
        label="Recoveries"
        empty="No recovery ran."
        header={["Job", "Strategy", "Outcome", "Measured from", "Predicted", "Actual"]}
        rows={recoveries.map((one, at) => ({
          key: String(at),
          cells: [
            one.job,
            one.strategy === null ? UNKNOWN : humanize(one.strategy),
            humanize(one.outcome),
            one.measured_from,
            seconds(one.predicted_seconds),
            seconds(one.actual_seconds),
          ],
        }))}
      />
    </Panel>
  );
}

function Comments({ found: { comments } }: { found: PostMortem }) {
  return (
    <Panel title="Comments">
      {comments.length === 0 && <Empty title="No comments." />}
      <ul className="flex flex-col gap-3 text-sm">
        {comments.map((comment) => (
          <li key={`${comment.time} ${comment.author}`} className="break-inside-avoid">
            <p className="text-ink-3 text-xs">
              {comment.author}, <Moment at={comment.time} />
            </p>
            <p className="whitespace-pre-wrap break-words">{comment.text}</p>
          </li>
        ))}
      </ul>
    </Panel>
  );
}
