import type { ButtonHTMLAttributes, Ref } from "react";
import { cx } from "@/lib/cx";
import { Icon, type IconName } from "./icon";

type Kind = "primary" | "plain" | "ghost" | "danger";

const kinds: Record<Kind, string> = {
  primary: "bg-accent text-accent-ink hover:brightness-110 border-transparent",
  plain: "bg-surface text-ink border-line-strong hover:bg-hover",
  ghost: "border-transparent text-ink-2 hover:bg-hover hover:text-ink",
  danger: "bg-surface text-quarantined border-line-strong hover:bg-quarantined-soft",
};

interface Props extends ButtonHTMLAttributes<HTMLButtonElement> {
  kind?: Kind;
  icon?: IconName;
  busy?: boolean;
  ref?: Ref<HTMLButtonElement>;
}

/** A button; with an icon and no children it must have an aria-label. */
export function Button({ kind = "plain", icon, busy, className, children, disabled, type, ...rest }: Props) {
  return (
    <button
      type={type ?? "button"}
      disabled={disabled || busy}
      aria-busy={busy || undefined}
      className={cx(
        "inline-flex h-8 items-center justify-center gap-1.5 whitespace-nowrap rounded-md border font-medium text-sm transition-colors duration-100",
        "disabled:opacity-50",
        children ? "px-3" : "w-8",
        kinds[kind],
        className,
      )}
      {...rest}
    >
      {icon && <Icon name={icon} size={15} />}
      {children}
    </button>
  );
}
