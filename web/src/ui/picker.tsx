/** A button that opens a grouped list with a search field. */
import { Popover as Radix } from "radix-ui";
import { type KeyboardEvent, useEffect, useId, useRef, useState } from "react";
import { cx } from "@/lib/cx";
import { fuzzyFilter } from "@/lib/fuzzy";
import { Icon } from "./icon";

export interface PickerOption {
  value: string;
  label: string;
  /** The group's name; options of a group are adjacent. */
  group: string;
  about?: string;
  /** Shown at the right, such as a count. */
  note?: string;
}

interface Props {
  label: string;
  value: string;
  onChange: (value: string) => void;
  options: readonly PickerOption[];
  placeholder?: string;
}

export function Picker({ label, value, onChange, options, placeholder = "Search" }: Props) {
  const [open, setOpen] = useState(false);
  const current = options.find((option) => option.value === value);
  return (
    <Radix.Root open={open} onOpenChange={setOpen}>
      <Radix.Trigger
        aria-label={`${label}: ${current?.label ?? value}`}
        className="inline-flex h-8 max-w-80 items-center gap-2 rounded-md border border-line-strong bg-surface px-3 font-medium text-ink text-sm hover:bg-hover"
      >
        <span className="truncate">{current?.label ?? value}</span>
        <span className="text-ink-3">
          <Icon name="down" size={14} />
        </span>
      </Radix.Trigger>
      <Radix.Portal>
        <Radix.Content
          align="end"
          sideOffset={4}
          collisionPadding={8}
          aria-label={label}
          className="z-50 w-[min(22rem,calc(100vw-1rem))] animate-appear overflow-hidden rounded-lg border border-line bg-raised shadow-pop"
        >
          <Options
            label={label}
            placeholder={placeholder}
            value={value}
            options={options}
            onChoose={(next) => {
              setOpen(false);
              onChange(next);
            }}
          />
        </Radix.Content>
      </Radix.Portal>
    </Radix.Root>
  );
}

type OptionsProps = Omit<Props, "onChange"> & { onChoose: (value: string) => void };

function Options({ label, value, options, placeholder, onChoose }: OptionsProps) {
  const list = useId();
  const [query, setQuery] = useState("");
  const shown = fuzzyFilter(options, query, (o) => `${o.label} ${o.group} ${o.value}`, options.length);
  const [active, setActive] = useState(() =>
    Math.max(
      0,
      shown.findIndex((o) => o.value === value),
    ),
  );
  const at = Math.min(active, shown.length - 1);
  const grouped = query.trim() === "";

  function onKey(event: KeyboardEvent) {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 }[event.key];
    if (step) setActive(Math.max(0, Math.min(shown.length - 1, at + step)));
    else if (event.key === "Home" && event.ctrlKey) setActive(0);
    else if (event.key === "Enter" && shown[at]) onChoose(shown[at].value);
    else return;
    event.preventDefault();
  }

  return (
    <>
      <div className="flex items-center gap-2 border-line border-b px-3 text-ink-3">
        <Icon name="search" size={14} />
        <input
          // biome-ignore lint/a11y/noAutofocus: the list is opened to type into
          autoFocus
          role="combobox"
          aria-expanded="true"
          aria-controls={list}
          aria-activedescendant={shown[at] ? `${list}-${at}` : undefined}
          aria-label={`Search ${label.toLowerCase()}`}
          placeholder={placeholder}
          value={query}
          onChange={(event) => {
            setQuery(event.target.value);
            setActive(0);
          }}
          onKeyDown={onKey}
          className="h-9 min-w-0 flex-1 bg-transparent text-ink text-sm outline-none placeholder:text-ink-3"
        />
      </div>
      <div id={list} role="listbox" aria-label={label} className="max-h-80 overflow-auto p-1">
        {shown.map((option, index) => (
          <Row
            key={option.value}
            id={`${list}-${index}`}
            option={option}
            head={grouped && option.group !== shown[index - 1]?.group ? option.group : undefined}
            aside={option.note ?? (grouped ? undefined : option.group)}
            active={index === at}
            chosen={option.value === value}
            onPoint={() => setActive(index)}
            onChoose={() => onChoose(option.value)}
          />
        ))}
        {shown.length === 0 && <p className="px-2.5 py-2 text-ink-3 text-sm">No match. Try another name.</p>}
      </div>
    </>
  );
}

interface RowProps {
  id: string;
  option: PickerOption;
  head: string | undefined;
  aside: string | undefined;
  active: boolean;
  chosen: boolean;
  onPoint: () => void;
  onChoose: () => void;
}

function Row({ id, option, head, aside, active, chosen, onPoint, onChoose }: RowProps) {
  const row = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (active) row.current?.scrollIntoView({ block: "nearest" });
  }, [active]);
  return (
    <>
      {head && (
        <div role="presentation" className="px-2.5 pt-2 pb-1 text-ink-3 text-xs">
          {head}
        </div>
      )}
      {/* biome-ignore lint/a11y/useKeyWithClickEvents: the combobox handles keys, as the ARIA pattern requires */}
      <div
        ref={row}
        id={id}
        role="option"
        tabIndex={-1}
        aria-selected={active}
        title={option.about}
        onMouseMove={onPoint}
        onClick={onChoose}
        className={cx(
          "flex items-center gap-3 rounded-md px-2.5 py-1.5 text-ink text-sm",
          active && "bg-accent-soft",
        )}
      >
        <span className="truncate">{option.label}</span>
        <span className="ml-auto shrink-0 text-ink-3 text-xs">{aside}</span>
        {chosen && <Icon name="check" size={14} />}
      </div>
    </>
  );
}
