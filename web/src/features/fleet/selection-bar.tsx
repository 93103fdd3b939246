/** What can be done with the selected nodes. It stays in view while the page scrolls. */
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { SilenceDialog } from "@/features/silences/silence-dialog";
import { plural } from "@/lib/format";
import { Button } from "@/ui/button";
import { useToast } from "@/ui/toast";
import { BulkDialog } from "./bulk-dialog";
import { followDrain } from "./bulk-queries";
import { MAX_NODES, silenceDraft } from "./selection";

interface Props {
  selected: ReadonlySet<string>;
  /** All nodes with their racks. */
  places: readonly { node: string; rack: string }[];
  /** Whether the map shows a past time. */
  past: boolean;
  onClear: () => void;
}

export function SelectionBar({ selected, places, past, onClear }: Props) {
  const [open, setOpen] = useState<"drain" | "validate" | "silence" | null>(null);
  const queryClient = useQueryClient();
  const toast = useToast();
  if (selected.size === 0) return null;
  const tooMany = selected.size > MAX_NODES;
  const draft = silenceDraft(selected, places);
  const close = () => setOpen(null);
  return (
    <section
      aria-label="Selected nodes"
      className="sticky bottom-4 z-20 flex flex-wrap items-center gap-2 rounded-lg border border-line-strong bg-raised px-4 py-2 text-sm shadow-pop"
    >
      <p role="status" className="mr-2">
        <b className="num font-semibold">{plural(selected.size, "node")}</b> selected
        {tooMany && <span className="text-ink-2">; at most {MAX_NODES} at once</span>}
        {past && <span className="text-ink-2">; the map shows the past. Choose Live to act on nodes.</span>}
      </p>
      <Button kind="primary" disabled={tooMany || past} onClick={() => setOpen("drain")}>
        Drain
      </Button>
      <Button disabled={tooMany || past} onClick={() => setOpen("validate")}>
        Validate
      </Button>
      <Button
        disabled={!draft || past}
        title={draft ? undefined : "Select whole racks, or at most 200 nodes"}
        onClick={() => setOpen("silence")}
      >
        Silence
      </Button>
      <Button kind="ghost" onClick={onClear}>
        Clear
      </Button>
      {(open === "drain" || open === "validate") && (
        <BulkDialog
          action={open}
          nodes={[...selected]}
          onClose={close}
          onMoved={(moved, reason) => {
            if (open === "drain") followDrain(queryClient, { nodes: moved.changed, reason });
            else toast(`Validation requested for ${plural(moved.changed.length, "node")}`);
            onClear();
          }}
        />
      )}
      {open === "silence" && draft && <SilenceDialog initial={draft} onClose={close} />}
    </section>
  );
}
