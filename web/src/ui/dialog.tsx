import { Dialog as Radix } from "radix-ui";
import type { ReactNode } from "react";
import { cx } from "@/lib/cx";
import { Button } from "./button";

interface Props {
  open: boolean;
  onOpenChange: (open: boolean) => void;
  title: string;
  about?: ReactNode;
  children: ReactNode;
  className?: string;
}

export function Dialog({ open, onOpenChange, title, about, children, className }: Props) {
  return (
    <Radix.Root open={open} onOpenChange={onOpenChange}>
      <Radix.Portal>
        <Radix.Overlay className="fixed inset-0 z-40 bg-black/45" />
        <Radix.Content
          {...(about ? {} : { "aria-describedby": undefined })}
          className={cx(
            "fixed top-[14vh] left-1/2 z-50 max-h-[76vh] w-[min(32rem,calc(100vw-2rem))] -translate-x-1/2 overflow-auto",
            "animate-appear rounded-xl border border-line bg-raised p-5 shadow-pop",
            className,
          )}
        >
          <div className="mb-3 flex items-start justify-between gap-4">
            <div>
              <Radix.Title className="font-semibold text-ink text-lg">{title}</Radix.Title>
              {about && <Radix.Description className="mt-0.5 text-ink-2 text-sm">{about}</Radix.Description>}
            </div>
            <Radix.Close asChild>
              <Button kind="ghost" icon="close" aria-label="Close dialog" />
            </Radix.Close>
          </div>
          {children}
        </Radix.Content>
      </Radix.Portal>
    </Radix.Root>
  );
}
