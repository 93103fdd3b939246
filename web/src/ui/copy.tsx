/** Copy the request behind a page as a shell command. */

import { Button } from "./button";
import { Icon } from "./icon";
import { Menu, MenuItem } from "./menu";
import { useToast } from "./toast";

export interface Command {
  label: string;
  text: string;
}

export function curl(path: string, body?: unknown): Command {
  const url = `${window.location.origin}${path}`;
  const post =
    body === undefined ? "" : ` -X POST -H 'Content-Type: application/json' -d '${JSON.stringify(body)}'`;
  return { label: "curl", text: `curl -s -H "Authorization: Bearer $MAINSTAY_TOKEN"${post} '${url}'` };
}

async function copyText(text: string): Promise<void> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Plain HTTP has no clipboard API; document.execCommand still works there.
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

export function CopyMenu({ commands }: { commands: Command[] }) {
  const toast = useToast();
  return (
    <Menu
      trigger={
        <Button icon="copy">
          Copy as
          <Icon name="down" size={13} />
        </Button>
      }
    >
      {commands.map((command) => (
        <MenuItem
          key={command.label}
          onSelect={() => void copyText(command.text).then(() => toast(`Copied as ${command.label}`))}
        >
          {command.label}
        </MenuItem>
      ))}
    </Menu>
  );
}

/** An identifier that copies itself. */
export function CopyText({ text, shown }: { text: string; shown?: string }) {
  const toast = useToast();
  return (
    <button
      type="button"
      title={`Copy ${text}`}
      onClick={() => void copyText(text).then(() => toast("Copied"))}
      className="group inline-flex max-w-full items-center gap-1 rounded font-mono text-ink-2 text-xs hover:text-ink"
    >
      <span className="truncate">{shown ?? text}</span>
      <span className="opacity-0 group-hover:opacity-100 group-focus-visible:opacity-100">
        <Icon name="copy" size={12} />
      </span>
    </button>
  );
}

/** A button that copies a long text. */
export function CopyButton({ text, label }: { text: string; label: string }) {
  const toast = useToast();
  return (
    <Button icon="copy" onClick={() => void copyText(text).then(() => toast("Copied"))}>
      {label}
    </Button>
  );
}
