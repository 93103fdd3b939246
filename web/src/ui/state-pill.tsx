/** A state as word, glyph, and tone. `quiet` omits the background, for lists. */
import { cx } from "@/lib/cx";
import type { StatusStyle, Tone } from "@/lib/status-styles";
import { Glyph, toneText } from "./glyph";

const ground: Record<Tone, string> = {
  healthy: "bg-healthy-soft",
  suspect: "bg-suspect-soft",
  draining: "bg-draining-soft",
  quarantined: "bg-quarantined-soft",
  validating: "bg-validating-soft",
  unknown: "bg-unknown-soft",
};

export function StatePill({
  look,
  quiet = false,
  text,
}: {
  look: StatusStyle;
  quiet?: boolean;
  text?: string;
}) {
  return (
    <span
      title={look.about}
      className={cx(
        "inline-flex h-5 items-center gap-1.5 whitespace-nowrap rounded-[5px] font-medium text-xs",
        toneText[look.tone],
        quiet ? "" : cx("px-1.5", ground[look.tone]),
      )}
    >
      <Glyph name={look.glyph} size={10} />
      {text ?? look.label}
    </span>
  );
}
