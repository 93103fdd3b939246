import type { Validation } from "@/api/types";
import { type StatusStyle, statusStyleOf, verdict } from "@/lib/status-styles";
import { Glyph } from "@/ui/glyph";
import { Progress } from "@/ui/progress";
import { StatePill } from "@/ui/state-pill";
import { progressShare, progressText, settled } from "./labels";

const glyphs: Record<Validation["state"], StatusStyle["glyph"]> = {
  queued: "ring",
  taken: "half",
  running: "half",
  done: "check",
  expired: "question",
};

/** The verdict, or the progress until there is one. */
export function ValidationProgress({
  validation,
  quiet = true,
}: {
  validation: Validation;
  quiet?: boolean;
}) {
  if (settled(validation))
    return <StatePill look={statusStyleOf(verdict, validation.verdict)} quiet={quiet} />;
  return (
    <span className="inline-flex items-center gap-1.5 text-ink-2 text-xs">
      <Glyph name={glyphs[validation.state]} tone="validating" size={10} />
      {progressText(validation)}
    </span>
  );
}

/** The progress bar; a texture without reports of the node. */
export function ValidationProgressBar({ validation }: { validation: Validation }) {
  if (settled(validation) || validation.state === "queued") return null;
  return <Progress value={progressShare(validation)} label={`Progress of ${validation.node}`} />;
}
