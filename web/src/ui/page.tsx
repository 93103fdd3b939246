/** The head of every page: title, description, age, actions. */
import { type ReactNode, useEffect } from "react";

interface Props {
  title: string;
  crumb?: ReactNode;
  mark?: ReactNode;
  meta?: ReactNode;
  actions?: ReactNode;
  children: ReactNode;
}

export function Page({ title, crumb, mark, meta, actions, children }: Props) {
  useEffect(() => {
    document.title = `${title} · Mainstay`;
  }, [title]);
  return (
    <div className="mx-auto flex w-full max-w-[1760px] flex-col gap-4 px-6 pt-5 pb-16">
      <header className="flex items-start justify-between gap-x-6 gap-y-3 max-md:flex-wrap">
        <div className="min-w-0">
          {crumb && <div className="mb-0.5 text-ink-3 text-xs">{crumb}</div>}
          <div className="flex flex-wrap items-center gap-x-3 gap-y-1">
            <h1 className="font-semibold text-ink text-xl tracking-[-0.015em]">{title}</h1>
            {mark}
          </div>
          {meta && (
            <div className="mt-1 flex flex-wrap items-center gap-x-4 gap-y-1 text-ink-2 text-sm">{meta}</div>
          )}
        </div>
        {actions && <div className="flex shrink-0 flex-wrap items-center gap-2 max-md:shrink">{actions}</div>}
      </header>
      {children}
    </div>
  );
}
