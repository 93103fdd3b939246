/** The devices of the node, each with a link to its history, and its facts on demand. */
import { Link } from "@tanstack/react-router";
import { useId, useState } from "react";
import type { Device } from "@/api/types";
import { deviceGroups, factsOf, hardwareOf, nameOf, shortModel } from "@/features/devices/device-labels";
import { cx } from "@/lib/cx";
import { plural } from "@/lib/format";
import { Facts } from "@/ui/facts";
import { Icon } from "@/ui/icon";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";

export function Devices({ devices }: { devices: Device[] }) {
  const groups = deviceGroups(devices);
  return (
    <Panel title="Devices" flush>
      {groups.length === 0 && (
        <div className="px-4 pb-3">
          <Empty title="No GPUs or ports found.">
            Check the drivers on the node: the node daemon lists their devices.
          </Empty>
        </div>
      )}
      {groups.map((group) => (
        <section key={group.kind} aria-label={group.label}>
          <h3 className="border-line border-t px-4 pt-2 pb-1 text-ink-3 text-xs">
            {group.label}, {plural(group.devices.length, "device")}
          </h3>
          <ul className="pb-1.5">
            {group.devices.map((device) => (
              <Row key={`${device.id}${hardwareOf(device)}`} device={device} />
            ))}
          </ul>
        </section>
      ))}
    </Panel>
  );
}

function Row({ device }: { device: Device }) {
  const [open, setOpen] = useState(false);
  const detail = useId();
  const key = hardwareOf(device);
  const facts = factsOf(device);
  return (
    <li className="px-4">
      <div className="flex items-center gap-2 py-0.5 text-sm">
        <button
          type="button"
          aria-expanded={open}
          aria-controls={detail}
          aria-label={`Facts of ${nameOf(device)}`}
          disabled={facts.length === 0}
          onClick={() => setOpen(!open)}
          className={cx(
            "grid size-5 place-items-center rounded text-ink-3 hover:bg-hover hover:text-ink",
            open && "rotate-90",
          )}
        >
          <Icon name="right" size={12} />
        </button>
        <span className="num shrink-0 font-medium text-ink">{nameOf(device)}</span>
        <span className="truncate text-ink-3" title={device.model}>
          {shortModel(device.model)}
        </span>
        {!device.present && <span className="text-quarantined text-xs">removed</span>}
        {key && (
          <Link
            to="/devices/$device"
            params={{ device: key }}
            search={{}}
            title={`Facts and history of ${key}`}
            className="ml-auto shrink-0 text-accent text-xs hover:underline"
          >
            History
          </Link>
        )}
      </div>
      {open && (
        <div id={detail} className="mb-2 ml-7 rounded bg-sunken px-2.5 py-2">
          <Facts facts={facts.map((fact) => ({ ...fact, mono: true }))} />
        </div>
      )}
    </li>
  );
}
