import {
  type InputHTMLAttributes,
  type ReactNode,
  type Ref,
  type TextareaHTMLAttributes,
  useId,
} from "react";
import { cx } from "@/lib/cx";

const box =
  "w-full rounded-md border border-line-strong bg-surface px-3 text-ink text-sm placeholder:text-ink-3 focus-visible:outline-2";

interface FieldProps {
  label: string;
  hint?: ReactNode;
  children: (id: string) => ReactNode;
}

export function Field({ label, hint, children }: FieldProps) {
  const id = useId();
  return (
    <div className="flex flex-col gap-1">
      <label htmlFor={id} className="font-medium text-ink text-sm">
        {label}
      </label>
      {children(id)}
      {hint && <p className="text-ink-3 text-xs">{hint}</p>}
    </div>
  );
}

export function Input({
  className,
  ...rest
}: InputHTMLAttributes<HTMLInputElement> & { ref?: Ref<HTMLInputElement> }) {
  return <input className={cx(box, "h-8", className)} {...rest} />;
}

export function TextArea({ className, ...rest }: TextareaHTMLAttributes<HTMLTextAreaElement>) {
  return <textarea className={cx(box, "min-h-20 py-2", className)} {...rest} />;
}
