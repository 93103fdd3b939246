/** The frame of every signed-in page: navigation, live connection, keyboard shortcuts. */
import { Outlet, useRouterState } from "@tanstack/react-router";
import { type ReactNode, type RefObject, useEffect, useRef, useState } from "react";
import { useWatch } from "@/api/watch";
import { LiveContext } from "@/lib/live";
import { LiveBanner } from "./live";
import { Nav } from "./nav";
import { Palette } from "./palette";
import { ShortcutHelp, useShortcuts } from "./shortcuts";

export function Shell({ children }: { children?: ReactNode }) {
  const live = useWatch(true);
  const [paletteOpen, setPaletteOpen] = useState(false);
  const [helpOpen, setHelpOpen] = useState(false);
  useShortcuts({ onPalette: () => setPaletteOpen(true), onHelp: () => setHelpOpen(true) });
  const main = useRef<HTMLElement>(null);
  usePageFocus(main);
  return (
    <LiveContext value={live}>
      <a
        href="#main"
        className="sr-only focus:not-sr-only focus:fixed focus:top-2 focus:left-2 focus:z-50 focus:rounded-md focus:bg-raised focus:px-3 focus:py-2"
      >
        Skip to content
      </a>
      <div className="grid min-h-screen print:block grid-cols-[3.5rem_minmax(0,1fr)] lg:grid-cols-[13rem_minmax(0,1fr)]">
        <Nav onPalette={() => setPaletteOpen(true)} onHelp={() => setHelpOpen(true)} />
        <main id="main" ref={main} tabIndex={-1} className="min-w-0 outline-none">
          <LiveBanner />
          {children ?? <Outlet />}
        </main>
      </div>
      <Palette open={paletteOpen} onOpenChange={setPaletteOpen} />
      <ShortcutHelp open={helpOpen} onOpenChange={setHelpOpen} />
    </LiveContext>
  );
}

/** Move the focus to the start of a new page, for keyboards and screen readers. */
function usePageFocus(main: RefObject<HTMLElement | null>) {
  const path = useRouterState({ select: (state) => state.location.pathname });
  const first = useRef(path);
  useEffect(() => {
    if (first.current === path) return;
    first.current = path;
    main.current?.focus({ preventScroll: true });
  }, [path, main]);
}
