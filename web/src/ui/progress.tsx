/** A progress bar; without a known total it shows a texture. */
import { cx } from "@/lib/cx";

interface Props {
  value: number | null;
  label: string;
  className?: string;
}

export function Progress({ value, label, className }: Props) {
  const known = value != null && Number.isFinite(value);
  return (
    <div
      role="progressbar"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={known ? Math.round(value * 100) : undefined}
      className={cx(
        "h-1.5 overflow-hidden rounded-full bg-sunken",
        !known && "diagonal opacity-60",
        className,
      )}
    >
      {known && (
        <div
          className="h-full rounded-full bg-accent"
          style={{ width: `${Math.min(100, Math.max(0, value * 100))}%` }}
        />
      )}
    </div>
  );
}
