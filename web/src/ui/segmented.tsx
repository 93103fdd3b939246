/** A choice between a few visible options. */
import { ToggleGroup } from "radix-ui";
import { cx } from "@/lib/cx";

interface Props<T extends string> {
  label: string;
  value: T;
  onChange: (value: T) => void;
  options: readonly { value: T; label: string; title?: string }[];
  /** Options that do not fit follow on another line: a bar that scrolls hides them. */
  wrap?: boolean;
}

export function Segmented<T extends string>({ label, value, onChange, options, wrap }: Props<T>) {
  return (
    <ToggleGroup.Root
      type="single"
      aria-label={label}
      value={value}
      onValueChange={(next) => next && onChange(next as T)}
      className={cx(
        "inline-flex items-center rounded-md bg-sunken p-0.5",
        wrap ? "self-start flex-wrap" : "h-8",
      )}
    >
      {options.map((option) => (
        <ToggleGroup.Item
          key={option.value}
          value={option.value}
          title={option.title}
          className="h-7 whitespace-nowrap rounded-[5px] px-2.5 font-medium max-md:px-1.5 text-ink-2 text-sm hover:text-ink data-[state=on]:bg-raised data-[state=on]:text-ink data-[state=on]:shadow-[0_0_0_1px_var(--line-strong)]"
        >
          {option.label}
        </ToggleGroup.Item>
      ))}
    </ToggleGroup.Root>
  );
}
