import { useQuery } from "@tanstack/react-query";
import type { IncidentDetail } from "@/api/types";
import { plural } from "@/lib/format";
import { Clock } from "@/ui/age";
import { CopyButton } from "@/ui/copy";
import { Glyph } from "@/ui/glyph";
import { Icon } from "@/ui/icon";
import { Panel } from "@/ui/panel";
import { stackEventsQuery } from "./queries";
import { asText, dumpsOf, isDump, type StackDump, type ThreadStack } from "./stacks-model";

/** Stacks of the suspect ranks: per rank its threads, innermost frame first. */
export function Stacks({ incident }: { incident: IncidentDetail }) {
  const job = incident.job ?? "";
  const query = useQuery({
    ...stackEventsQuery(job),
    enabled: job !== "" && incident.timeline.some(isDump),
  });
  const dumps = dumpsOf(incident, query.data ?? []);
  if (dumps.length === 0) return null;
  return (
    <Panel title="Stacks" about={`${plural(dumps.length, "dump")}, innermost frame first`} flush>
      {dumps.map((dump, index) => (
        <Dump key={dump.id} dump={dump} open={index === 0} />
      ))}
    </Panel>
  );
}

function Dump({ dump, open }: { dump: StackDump; open: boolean }) {
  const innermost = dump.stacks[0]?.frames[0];
  return (
    <details open={open} className="group/dump border-line border-t">
      <summary className="flex cursor-pointer list-none items-center gap-2.5 px-4 py-2 text-sm hover:bg-hover">
        <span className="text-ink-3 transition-transform duration-100 group-open/dump:rotate-90">
          <Icon name="right" size={12} />
        </span>
        <span className="num whitespace-nowrap font-medium">rank {dump.rank ?? "?"}</span>
        {dump.suspect && (
          <span className="inline-flex items-center gap-1 whitespace-nowrap text-suspect text-xs">
            <Glyph name="triangle" size={9} /> suspect
          </span>
        )}
        <span className="min-w-0 flex-1 truncate font-mono text-ink-2 text-xs group-open/dump:invisible">
          {innermost ?? dump.problem}
        </span>
        <span className="text-ink-3 text-xs">
          <Clock at={dump.time} millis />
        </span>
      </summary>
      <div className="flex flex-col gap-2 px-4 pb-3">
        <div className="flex flex-wrap items-center gap-x-3 gap-y-1 text-ink-3 text-xs">
          <span className="min-w-0 flex-1">
            {[
              dump.reason,
              dump.node && `on ${dump.node}`,
              dump.process && `process ${dump.process}`,
              dump.tool && `by ${dump.tool}`,
            ]
              .filter(Boolean)
              .join(" · ")}
          </span>
          {dump.stacks.length > 0 && <CopyButton text={asText(dump)} label="Copy stacks" />}
        </div>
        {dump.problem && <p className="text-suspect text-sm">{dump.problem}</p>}
        {dump.stacks.map((stack, index) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: two threads may have one name
          <Thread key={index} stack={stack} open={index === 0} />
        ))}
      </div>
    </details>
  );
}

function Thread({ stack, open }: { stack: ThreadStack; open: boolean }) {
  return (
    <details open={open} className="group/thread rounded-md bg-sunken">
      <summary className="flex cursor-pointer list-none items-center gap-2 rounded-md px-2.5 py-1.5 text-ink-2 text-xs hover:text-ink">
        <span className="text-ink-3 transition-transform duration-100 group-open/thread:rotate-90">
          <Icon name="right" size={11} />
        </span>
        <span className="font-medium">{stack.thread}</span>
        <span className="ml-auto text-ink-3">{plural(stack.frames.length, "frame")}</span>
      </summary>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a scrolling region must be reachable by keyboard */}
      <section tabIndex={0} aria-label={`Frames of ${stack.thread}`} className="overflow-x-auto px-2.5 pb-2">
        <ol className="num font-mono text-xs leading-5">
          {stack.frames.map((frame, depth) => (
            // biome-ignore lint/suspicious/noArrayIndexKey: a frame is its depth
            <li key={depth} className="flex gap-3 whitespace-pre">
              <span className="w-5 shrink-0 select-none text-right text-ink-3">{depth}</span>
              <span className={depth === 0 ? "font-medium text-ink" : "text-ink-2"}>{frame}</span>
            </li>
          ))}
        </ol>
      </section>
    </details>
  );
}
