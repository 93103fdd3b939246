/** Copy-as-command on every object: what the page shows, a shell can have too. */

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
  // Plain HTTP inside a site's network has no clipboard API; the old way still works there.
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

export function CopyMenu({ commands }: { commands: Command[] }) {
  const say = useToast();
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
          onSelect={() => void copyText(command.text).then(() => say(`Copied as ${command.label}`))}
        >
          {command.label}
        </MenuItem>
      ))}
    </Menu>
  );
}

/** An identifier that copies itself. */
export function CopyText({ text, shown }: { text: string; shown?: string }) {
  const say = useToast();
  return (
    <button
      type="button"
      title={`Copy ${text}`}
      onClick={() => void copyText(text).then(() => say("Copied"))}
      className="group inline-flex max-w-full items-center gap-1 rounded font-mono text-ink-2 text-xs hover:text-ink"
    >
      <span className="truncate">{shown ?? text}</span>
      <span className="opacity-0 group-hover:opacity-100 group-focus-visible:opacity-100">
        <Icon name="copy" size={12} />
      </span>
    </button>
  );
}

/** A button that copies what is too long to show as its own label. */
export function CopyButton({ text, label }: { text: string; label: string }) {
  const say = useToast();
  return (
    <Button icon="copy" onClick={() => void copyText(text).then(() => say("Copied"))}>
      {label}
    </Button>
  );
}
