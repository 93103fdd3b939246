/** A switch that takes effect immediately. A word shows its state, in addition to the color. */
import { Switch as Radix } from "radix-ui";
import { cx } from "@/lib/cx";

interface Props {
  label: string;
  on: boolean;
  busy?: boolean;
  onChange: (on: boolean) => void;
}

export function Switch({ label, on, busy, onChange }: Props) {
  return (
    <span className="inline-flex items-center gap-2 text-ink-2 text-sm">
      <Radix.Root
        aria-label={label}
        checked={on}
        disabled={busy}
        onCheckedChange={onChange}
        className={cx(
          "relative h-5 w-9 shrink-0 rounded-full border transition-colors duration-100",
          on ? "border-transparent bg-accent" : "border-line-strong bg-sunken",
        )}
      >
        <Radix.Thumb
          className={cx(
            "block size-3.5 rounded-full transition-transform duration-100",
            on ? "translate-x-[18px] bg-accent-ink" : "translate-x-[2px] bg-ink-3",
          )}
        />
      </Radix.Root>
      <span aria-hidden="true" className="w-6">
        {on ? "On" : "Off"}
      </span>
    </span>
  );
}
