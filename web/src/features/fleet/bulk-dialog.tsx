/** The dialog that drains or validates many nodes: what would happen, and the reason. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import type { NodesMove } from "@/api/types";
import { nodeKeys } from "@/features/nodes/queries";
import { plural } from "@/lib/format";
import { ActDialog } from "@/ui/act-dialog";
import { ErrorNotice } from "@/ui/notice";
import { Segmented } from "@/ui/segmented";
import { Skeleton } from "@/ui/skeleton";
import { type DrainMode, moveNodes, previewQuery } from "./bulk-queries";
import { fleetKeys } from "./queries";

interface Props {
  action: "drain" | "validate";
  nodes: string[];
  onClose: () => void;
  onMoved: (moved: NodesMove, reason: string) => void;
}

const texts = {
  drain: {
    verb: "Drain",
    about: "The nodes get no new work. They leave service when their jobs have left.",
  },
  validate: {
    verb: "Validate",
    about: "Benchmarks run on quarantined nodes. Those that pass return to service.",
  },
};

export function BulkDialog({ action, nodes, onClose, onMoved }: Props) {
  const queryClient = useQueryClient();
  const preview = useQuery(previewQuery(action, nodes));
  const [mode, setMode] = useState<DrainMode>("wait");
  const { verb, about } = texts[action];
  const changed = preview.data?.changed.length ?? 0;
  return (
    <ActDialog
      title={`${verb} ${plural(nodes.length, "node")}`}
      about={about}
      verb={changed > 0 ? `${verb} ${plural(changed, "node")}` : verb}
      blocked={changed === 0}
      run={async ({ reason, headers }) => {
        const confirm_count = preview.data?.matched ?? null;
        onMoved(await moveNodes({ action, nodes, reason, mode, confirm_count }, headers), reason);
      }}
      onClose={onClose}
      onDone={() => {
        for (const key of [nodeKeys.all, fleetKeys.snapshot("state"), ["overview"], ["validations"]])
          void queryClient.invalidateQueries({ queryKey: key });
      }}
    >
      {action === "drain" && (
        <Segmented
          label="Running jobs"
          value={mode}
          onChange={setMode}
          options={[
            { value: "wait", label: "Wait for them" },
            { value: "migrate", label: "Migrate ranks first" },
          ]}
        />
      )}
      {preview.isPending && <Skeleton className="h-16" />}
      {preview.isError && <ErrorNotice error={preview.error} onRetry={() => void preview.refetch()} />}
      {preview.data && <Preview seen={preview.data} verb={verb.toLowerCase()} />}
    </ActDialog>
  );
}

function Preview({ seen, verb }: { seen: NodesMove; verb: string }) {
  const accepted = seen.items.filter((item) => item.accepted);
  const refused = seen.items.filter((item) => !item.accepted);
  const jobs = [...new Set(accepted.flatMap((item) => item.jobs))];
  return (
    <section aria-label="Preview" className="flex flex-col gap-2 rounded-md bg-sunken px-3 py-2 text-sm">
      <p>
        <b className="font-semibold">{plural(accepted.length, "node")}</b> to {verb}
        {seen.confirmation_required && `, of ${seen.fleet} in the fleet`}.{" "}
        {jobs.length > 0
          ? `${plural(jobs.length, "job")} on them: ${shortList(jobs)}.`
          : "No job has ranks on them."}
      </p>
      <Names title="Nodes" items={accepted.map(({ node }) => ({ node }))} />
      <Names title={`${refused.length} refused`} items={refused} open />
    </section>
  );
}

function Names({
  title,
  items,
  open,
}: {
  title: string;
  items: { node: string; detail?: string }[];
  open?: boolean;
}) {
  if (items.length === 0) return null;
  return (
    <details open={open}>
      <summary className="cursor-pointer text-ink-2 text-xs">{title}</summary>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a long list scrolls by keyboard */}
      <ul tabIndex={0} className="mt-1 max-h-32 overflow-auto text-xs">
        {items.map(({ node, detail }) => (
          <li key={node}>
            <span className="font-mono">{node}</span>
            {detail && <span className="text-ink-3">: {detail}</span>}
          </li>
        ))}
      </ul>
    </details>
  );
}

/** "a, b, c, and 4 more". */
function shortList(names: string[]): string {
  return names.length <= 4
    ? names.join(", ")
    : `${names.slice(0, 3).join(", ")}, and ${names.length - 3} more`;
}
