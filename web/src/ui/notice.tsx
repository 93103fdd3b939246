/** Notices in place of data: empty, failed, stale. Each states what is known and what to do. */
import type { ReactNode } from "react";
import { problemOf } from "@/api/problem";
import { Age } from "./age";
import { Button } from "./button";
import { Glyph } from "./glyph";

export function Empty({
  title,
  children,
  action,
}: {
  title: string;
  children?: ReactNode;
  action?: ReactNode;
}) {
  return (
    <div className="flex flex-col items-start gap-0.5 py-1">
      <p className="font-medium text-ink text-sm">{title}</p>
      {children && <div className="max-w-prose text-ink-3 text-sm">{children}</div>}
      {action && <div className="mt-2">{action}</div>}
    </div>
  );
}

export function ErrorNotice({ error, onRetry }: { error: unknown; onRetry?: () => void }) {
  const problem = problemOf(error);
  return (
    <div role="alert" className="flex items-start gap-3 rounded-md bg-quarantined-soft px-3 py-2.5">
      <span className="mt-1">
        <Glyph name="cross" tone="quarantined" />
      </span>
      <div className="min-w-0 flex-1 text-sm">
        <p className="font-medium text-ink">{problem.title}</p>
        {problem.detail && <p className="text-ink-2">{problem.detail}</p>}
        {problem.errors?.map((e) => (
          <p key={`${e.loc.join(".")}${e.msg}`} className="text-ink-2">
            <code className="font-mono text-xs">{e.loc.join(".")}</code>: {e.msg}
          </p>
        ))}
      </div>
      {onRetry && <Button onClick={onRetry}>Try again</Button>}
    </div>
  );
}

/** A notice over data that could not be refreshed: the data stays, labeled with its age. */
export function StaleStrip({
  since,
  error,
  onRetry,
}: {
  since: number;
  error: unknown;
  onRetry?: () => void;
}) {
  const problem = problemOf(error);
  return (
    <div
      role="status"
      className="flex items-center gap-2 rounded-md bg-suspect-soft px-3 py-1.5 text-ink-2 text-xs"
    >
      <Glyph name="half" tone="suspect" size={11} />
      <span>
        Frozen: last read <Age at={since} />. {problem.title}.
      </span>
      {onRetry && (
        <button type="button" onClick={onRetry} className="ml-auto font-medium text-accent hover:underline">
          Try again
        </button>
      )}
    </div>
  );
}
