import { useInfiniteQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { client, unwrap } from "@/api/client";
import type { PolicyVersion } from "@/api/types";
import { usePolling } from "@/lib/live";
import { type StatusStyle, statusStyleOf } from "@/lib/status-styles";
import { ActDialog } from "@/ui/act-dialog";
import { Age } from "@/ui/age";
import { Button } from "@/ui/button";
import { CopyText } from "@/ui/copy";
import { Empty, ErrorNotice } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { SkeletonRows } from "@/ui/skeleton";
import { StatePill } from "@/ui/state-pill";
import { useToast } from "@/ui/toast";
import { policyKeys, policyVersionsQuery } from "./queries";

const looks: Record<string, StatusStyle> = {
  active: { label: "Active", tone: "healthy", glyph: "check", about: "In force" },
  shadow: { label: "Shadow", tone: "draining", glyph: "half", about: "Evaluated without effect" },
  draft: { label: "Draft", tone: "unknown", glyph: "ring", about: "Stored, not evaluated" },
  retired: { label: "Retired", tone: "unknown", glyph: "dot", about: "No longer evaluated" },
};

type Step = { version: number; to: "activate" | "retire" };

export function Versions({ onEdit }: { onEdit: (overrides: string) => void }) {
  const query = useInfiniteQuery({ ...policyVersionsQuery(), refetchInterval: usePolling(30_000) });
  const [step, setStep] = useState<Step | null>(null);
  const items = query.data?.pages.flatMap((page) => page.items);
  return (
    <Panel title="Versions" about="newest first" flush>
      {query.isPending && <SkeletonRows className="px-4 pb-4" />}
      {query.isError && !items && (
        <div className="px-4 pb-4">
          <ErrorNotice error={query.error} onRetry={() => void query.refetch()} />
        </div>
      )}
      {items?.length === 0 && (
        <div className="px-4 pb-3">
          <Empty title="No versions. The built-in rules are in force.">
            Uploaded overrides appear here with their author and reason.
          </Empty>
        </div>
      )}
      <ol>
        {items?.map((item) => (
          <Row key={item.version} item={item} onEdit={onEdit} onStep={setStep} />
        ))}
      </ol>
      {query.hasNextPage && (
        <div className="border-line border-t px-4 py-3">
          <Button busy={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
            Load more
          </Button>
        </div>
      )}
      {step && <StepDialog step={step} onClose={() => setStep(null)} />}
    </Panel>
  );
}

interface RowProps {
  item: PolicyVersion;
  onEdit: (overrides: string) => void;
  onStep: (step: Step) => void;
}

function Row({ item, onEdit, onStep }: RowProps) {
  return (
    <li className="border-line border-t px-4 py-2.5 text-sm">
      <div className="flex flex-wrap items-center gap-x-3 gap-y-1">
        <span className="num font-semibold">Version {item.version}</span>
        <StatePill look={statusStyleOf(looks, item.mode)} />
        <span className="text-ink-3 text-xs">
          {item.actor}, <Age at={item.created_at} />
        </span>
        <CopyText text={item.digest} shown={item.digest.slice(0, 12)} />
        <span className="ml-auto flex gap-2">
          <Button kind="ghost" onClick={() => onEdit(item.overrides)}>
            Edit a copy
          </Button>
          {item.mode !== "active" && (
            <Button onClick={() => onStep({ version: item.version, to: "activate" })}>Activate</Button>
          )}
          {(item.mode === "active" || item.mode === "shadow") && (
            <Button onClick={() => onStep({ version: item.version, to: "retire" })}>Retire</Button>
          )}
        </span>
      </div>
      <p className="mt-0.5 text-ink-2">{item.reason}</p>
      {item.changed_at !== item.created_at && (
        <p className="text-ink-3 text-xs">
          {statusStyleOf(looks, item.mode).label} since <Age at={item.changed_at} suffix="" />,{" "}
          {item.changed_by}: {item.changed_reason}
        </p>
      )}
      <details className="mt-1">
        <summary className="w-max cursor-pointer text-ink-3 text-xs hover:text-ink">
          Overrides of version {item.version}
        </summary>
        <pre className="mt-1.5 max-h-72 overflow-auto rounded bg-sunken px-3 py-2 font-mono text-2xs leading-4">
          {item.overrides || "# none: the built-in rules"}
        </pre>
      </details>
    </li>
  );
}

function StepDialog({ step, onClose }: { step: Step; onClose: () => void }) {
  const queryClient = useQueryClient();
  const toast = useToast();
  const activate = step.to === "activate";
  return (
    <ActDialog
      title={`${activate ? "Activate" : "Retire"} version ${step.version}`}
      about={
        activate
          ? "It replaces the active version immediately. It may take nodes out of service."
          : "It is no longer in force. Without another active version, the built-in rules apply."
      }
      verb={activate ? "Activate" : "Retire"}
      run={({ reason, headers }) => {
        const options = { headers, body: { version: step.version, reason } };
        return unwrap<unknown>(
          activate
            ? client.POST("/v1/policies/xid:activate", options)
            : client.POST("/v1/policies/xid:retire", options),
        );
      }}
      onClose={onClose}
      onDone={() => {
        void queryClient.invalidateQueries({ queryKey: policyKeys.all });
        toast(activate ? "Active" : "Retired");
      }}
    />
  );
}
