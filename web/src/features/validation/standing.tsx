import type { Validation } from "@/api/types";
import { type Look, lookOf, verdict } from "@/lib/states";
import { Glyph } from "@/ui/glyph";
import { Progress } from "@/ui/progress";
import { StatePill } from "@/ui/state-pill";
import { progressShare, settled, standingText } from "./words";

const glyphs: Record<Validation["state"], Look["glyph"]> = {
  queued: "ring",
  taken: "half",
  running: "half",
  done: "check",
  expired: "question",
};

/** The verdict, or where the validation stands until there is one. */
export function Standing({ validation, quiet = true }: { validation: Validation; quiet?: boolean }) {
  if (settled(validation)) return <StatePill look={lookOf(verdict, validation.verdict)} quiet={quiet} />;
  return (
    <span className="inline-flex items-center gap-1.5 text-ink-2 text-xs">
      <Glyph name={glyphs[validation.state]} tone="validating" size={10} />
      {standingText(validation)}
    </span>
  );
}

/** How far it is; by texture where the node has said nothing yet. */
export function StandingBar({ validation }: { validation: Validation }) {
  if (settled(validation) || validation.state === "queued") return null;
  return <Progress value={progressShare(validation)} label={`Progress of ${validation.node}`} />;
}
