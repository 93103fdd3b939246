/** Keyboard shortcuts: two letters open a page, j and k move between rows, and the palette finds the rest. */
import { useNavigate } from "@tanstack/react-router";
import { useEffect, useRef } from "react";
import { Dialog } from "@/ui/dialog";
import { Kbd } from "@/ui/kbd";

const jumps = {
  o: { to: "/", label: "Overview" },
  f: { to: "/fleet", label: "Fleet" },
  j: { to: "/jobs", label: "Jobs" },
  i: { to: "/incidents", label: "Incidents" },
  r: { to: "/remediation", label: "Remediation" },
  v: { to: "/validation", label: "Validation" },
  p: { to: "/policies/xid", label: "Policy" },
} as const;

const SEQUENCE_MS = 1200;

function typing(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLElement &&
    (target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName))
  );
}

const covered = () => document.querySelector('[role="dialog"],[role="menu"],[role="listbox"]') !== null;

export function useShortcuts({ onPalette, onHelp }: { onPalette: () => void; onHelp: () => void }) {
  const navigate = useNavigate();
  const armed = useRef(0);
  useEffect(() => {
    function onKey(event: KeyboardEvent) {
      if ((event.metaKey || event.ctrlKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        onPalette();
        return;
      }
      if (event.metaKey || event.ctrlKey || event.altKey || typing(event.target) || covered()) return;
      const waiting = Date.now() - armed.current < SEQUENCE_MS;
      armed.current = 0;
      const jump = waiting ? jumps[event.key as keyof typeof jumps] : undefined;
      if (jump) void navigate({ to: jump.to });
      else if (event.key === "g") armed.current = Date.now();
      else if (event.key === "/") onPalette();
      else if (event.key === "?") onHelp();
      else if ((event.key === "j" || event.key === "k") && !event.defaultPrevented) enterRows();
      else return;
      event.preventDefault();
    }
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  }, [navigate, onPalette, onHelp]);
}

/** Outside a list, j and k focus the first row of the page. */
function enterRows(): void {
  if (document.activeElement?.closest("[data-row]")) return;
  document.querySelector<HTMLElement>("main [data-row]")?.focus();
}

const rows: [string[], string][] = [
  [["Ctrl K", "/"], "Search and open"],
  ...Object.entries(jumps).map(([key, jump]): [string[], string] => [["g", key], jump.label]),
  [["j", "k"], "Next and previous row (also arrow keys)"],
  [["Enter"], "Open the row or the device under the cursor"],
  [["h", "j", "k", "l"], "Move on the fleet map and the rank grid"],
  [["Esc"], "Close or clear the cursor"],
  [["?"], "Show this list"],
];

export function ShortcutHelp({
  open,
  onOpenChange,
}: {
  open: boolean;
  onOpenChange: (open: boolean) => void;
}) {
  return (
    <Dialog open={open} onOpenChange={onOpenChange} title="Keyboard shortcuts">
      <dl className="grid grid-cols-[max-content_1fr] gap-x-6 gap-y-2 text-sm">
        {rows.map(([keys, about]) => (
          <div key={about} className="contents">
            <dt className="flex gap-1">
              {keys.map((key) => (
                <Kbd key={key}>{key}</Kbd>
              ))}
            </dt>
            <dd className="text-ink-2">{about}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}
