/** A titled region. Panels are not nested. */
import { type ReactNode, useId } from "react";
import { cx } from "@/lib/cx";
import type { TermName } from "@/lib/glossary";
import { Term } from "./term";

interface Props {
  title?: ReactNode;
  /** The glossary term that the title stands for. */
  term?: TermName;
  about?: ReactNode;
  aside?: ReactNode;
  children: ReactNode;
  className?: string;
  flush?: boolean;
}

export function Panel({ title, term, about, aside, children, className, flush = false }: Props) {
  const id = useId();
  return (
    <section
      aria-labelledby={title ? id : undefined}
      className={cx("min-w-0 rounded-lg border border-line bg-surface", className)}
    >
      {title && (
        <header className="flex min-h-11 flex-wrap items-center gap-x-3 gap-y-1 px-4 pt-2.5 pb-1.5">
          <h2 id={id} className="font-semibold text-base text-ink">
            {term ? <Term name={term}>{title}</Term> : title}
          </h2>
          {about && <p className="text-ink-3 text-xs">{about}</p>}
          {aside && (
            <div className="ml-auto flex items-center justify-end gap-2 max-md:flex-wrap">{aside}</div>
          )}
        </header>
      )}
      <div className={flush ? "" : cx("px-4 pb-4", !title && "pt-4")}>{children}</div>
    </section>
  );
}
