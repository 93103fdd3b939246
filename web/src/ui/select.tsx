import { Select as Radix } from "radix-ui";
import { Icon } from "./icon";

export interface Option {
  value: string;
  label: string;
  disabled?: boolean;
}
export interface OptionGroup {
  label?: string;
  options: Option[];
}

interface Props {
  label: string;
  value: string;
  onChange: (value: string) => void;
  groups: OptionGroup[];
}

export function Select({ label, value, onChange, groups }: Props) {
  return (
    <Radix.Root value={value} onValueChange={onChange}>
      <Radix.Trigger
        aria-label={label}
        className="inline-flex h-8 items-center gap-2 whitespace-nowrap rounded-md border border-line-strong bg-surface px-3 font-medium text-ink text-sm hover:bg-hover"
      >
        <Radix.Value />
        <Radix.Icon className="text-ink-3">
          <Icon name="down" size={14} />
        </Radix.Icon>
      </Radix.Trigger>
      <Radix.Portal>
        <Radix.Content
          position="popper"
          sideOffset={4}
          collisionPadding={8}
          className="z-50 max-h-[min(26rem,var(--radix-select-content-available-height))] min-w-[var(--radix-select-trigger-width)] animate-appear overflow-hidden rounded-lg border border-line bg-raised p-1 shadow-pop"
        >
          <Radix.Viewport>
            {groups.map((group) => (
              <Radix.Group key={group.label ?? ""}>
                {group.label && (
                  <Radix.Label className="px-2.5 pt-2 pb-1 text-ink-3 text-xs">{group.label}</Radix.Label>
                )}
                {group.options.map((option) => (
                  <Radix.Item
                    key={option.value}
                    value={option.value}
                    disabled={option.disabled}
                    className="flex cursor-pointer items-center justify-between gap-4 rounded-md px-2.5 py-1.5 text-ink text-sm outline-none data-[disabled]:cursor-not-allowed data-[highlighted]:bg-accent-soft data-[disabled]:text-ink-3"
                  >
                    <Radix.ItemText>{option.label}</Radix.ItemText>
                    <Radix.ItemIndicator>
                      <Icon name="check" size={14} />
                    </Radix.ItemIndicator>
                  </Radix.Item>
                ))}
              </Radix.Group>
            ))}
          </Radix.Viewport>
        </Radix.Content>
      </Radix.Portal>
    </Radix.Root>
  );
}
