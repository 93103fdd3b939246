/** The command palette: find pages, nodes, jobs, and incidents by a few letters. */
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { Dialog as Radix } from "radix-ui";
import { type KeyboardEvent, useId, useMemo, useState } from "react";
import type { Node } from "@/api/types";
import { meQuery, seesFleet } from "@/features/auth/queries";
import { hardwareOf, nameOf } from "@/features/devices/device-labels";
import { titleOf } from "@/features/incidents/lifecycle-model";
import { recentIncidentsQuery } from "@/features/incidents/queries";
import { jobsQuery } from "@/features/jobs/queries";
import { nodesQuery } from "@/features/nodes/queries";
import { cx } from "@/lib/cx";
import { fuzzyFilter } from "@/lib/fuzzy";
import { Icon, type IconName } from "@/ui/icon";
import { setTheme } from "./theme";

interface Command {
  id: string;
  label: string;
  kind: string;
  icon: IconName;
  run: () => void;
}

interface Props {
  open: boolean;
  onOpenChange: (open: boolean) => void;
}

export function Palette({ open, onOpenChange }: Props) {
  return (
    <Radix.Root open={open} onOpenChange={onOpenChange}>
      <Radix.Portal>
        <Radix.Overlay className="fixed inset-0 z-40 bg-black/45" />
        <Radix.Content
          aria-describedby={undefined}
          className="fixed top-[12vh] left-1/2 z-50 w-[min(38rem,calc(100vw-2rem))] -translate-x-1/2 animate-appear overflow-hidden rounded-xl border border-line bg-raised shadow-pop"
        >
          <Radix.Title className="sr-only">Search or jump</Radix.Title>
          <PaletteBody close={() => onOpenChange(false)} />
        </Radix.Content>
      </Radix.Portal>
    </Radix.Root>
  );
}

function useCommands(query: string): Command[] {
  const navigate = useNavigate();
  const fleet = seesFleet(useQuery(meQuery()).data);
  const nodes = useInfiniteQuery({ ...nodesQuery(query.length >= 2 ? { q: query } : {}), enabled: fleet });
  const first = useInfiniteQuery({ ...nodesQuery(), enabled: fleet }); // a serial number is not part of a node's name
  const jobs = useQuery(jobsQuery());
  const incidents = useQuery(recentIncidentsQuery());
  return useMemo(() => {
    const page = (to: string, label: string, icon: IconName): Command => ({
      id: to,
      label,
      kind: "page",
      icon,
      run: () => void navigate({ to }),
    });
    const theme = (value: "light" | "dark" | "system", label: string, icon: IconName): Command => ({
      id: `theme-${value}`,
      label,
      kind: "theme",
      icon,
      run: () => setTheme(value),
    });
    return [
      page("/", "Overview", "overview"),
      page("/fleet", "Fleet", "fleet"),
      page("/jobs", "Jobs", "jobs"),
      page("/incidents", "Incidents", "incidents"),
      page("/remediation", "Remediation proposals", "remediation"),
      page("/notifications", "Notifications", "message"),
      page("/reliability", "Reliability", "report"),
      page("/validation", "Validation", "validation"),
      page("/policies/xid", "Policy, XID rules", "policy"),
      page("/policies/detectors", "Policy, detectors", "policy"),
      page("/simulation", "Simulation of failures", "simulation"),
      page("/access", "Access: users, tokens, audit log", "person"),
      page("/service", "Service, processes", "system"),
      page("/glossary", "Glossary", "help"),
      ...(jobs.data?.items ?? []).map(
        (job): Command => ({
          id: `job-${job.id}`,
          label: job.name === job.id ? job.id : `${job.name} (${job.id})`,
          kind: "job",
          icon: "jobs",
          run: () => void navigate({ to: "/jobs/$id", params: { id: job.id }, search: {} }),
        }),
      ),
      ...(nodes.data?.pages[0]?.items ?? []).map(
        (node): Command => ({
          id: `node-${node.name}`,
          label: node.name,
          kind: "node",
          icon: "fleet",
          run: () => void navigate({ to: "/nodes/$name", params: { name: node.name }, search: {} }),
        }),
      ),
      ...deviceCommands(first.data?.pages[0]?.items ?? [], query, (device) => {
        void navigate({ to: "/devices/$device", params: { device }, search: {} });
      }),
      ...(incidents.data ?? []).slice(0, 60).map(
        (incident): Command => ({
          id: `incident-${incident.id}`,
          label: titleOf(incident),
          kind: `incident, ${incident.state}`,
          icon: "incidents",
          run: () => void navigate({ to: "/incidents/$id", params: { id: incident.id } }),
        }),
      ),
      theme("dark", "Dark theme", "moon"),
      theme("light", "Light theme", "sun"),
      theme("system", "System theme", "system"),
    ];
  }, [navigate, query, nodes.data, first.data, jobs.data, incidents.data]);
}

/** Find devices by a few digits of their serial. A whole serial that no node shows is offered as a link. */
function deviceCommands(nodes: Node[], query: string, open: (device: string) => void): Command[] {
  if (query.trim().length < 3) return [];
  const found = nodes.flatMap((node) =>
    node.devices.flatMap((device): Command[] => {
      const key = hardwareOf(device);
      if (!key) return [];
      const label = `${node.name} ${nameOf(device)}, ${key}`;
      return [{ id: `device-${key}`, label, kind: "device", icon: "gpu", run: () => open(key) }];
    }),
  );
  const whole = query.trim();
  if (!LIKE_HARDWARE.test(whole) || found.some((command) => command.id.includes(whole))) return found;
  const asked: Command = {
    id: `device-${whole}`,
    label: `Device ${whole}`,
    kind: "device, by serial or UUID",
    icon: "gpu",
    run: () => open(whole),
  };
  return [...found, asked];
}

/** A serial number or a UUID, typed or pasted whole. */
const LIKE_HARDWARE = /^(\d{8,}|(GPU|MIG)-[0-9a-f-]{8,}|0x[0-9a-f]{8,})$/i;

function PaletteBody({ close }: { close: () => void }) {
  const [query, setQuery] = useState("");
  const [active, setActive] = useState(0);
  const list = useId();
  const shown = fuzzyFilter(useCommands(query), query, (c) => `${c.label} ${c.kind}`, 12);
  const at = Math.min(active, shown.length - 1);

  function run(command: Command | undefined) {
    if (!command) return;
    close();
    command.run();
  }

  function onKey(event: KeyboardEvent) {
    if (event.key === "ArrowDown") setActive(Math.min(shown.length - 1, at + 1));
    else if (event.key === "ArrowUp") setActive(Math.max(0, at - 1));
    else if (event.key === "Enter") run(shown[at]);
    else return;
    event.preventDefault();
  }

  return (
    <>
      <div className="flex items-center gap-2.5 border-line border-b px-4 text-ink-3">
        <Icon name="search" />
        <input
          // biome-ignore lint/a11y/noAutofocus: the palette is opened to type into
          autoFocus
          role="combobox"
          aria-expanded="true"
          aria-controls={list}
          aria-activedescendant={shown[at] ? `${list}-${at}` : undefined}
          aria-label="Search pages, nodes, devices, jobs, and incidents"
          placeholder="Page, node, serial, job, incident…"
          value={query}
          onChange={(event) => {
            setQuery(event.target.value);
            setActive(0);
          }}
          onKeyDown={onKey}
          className="h-12 flex-1 bg-transparent text-base text-ink outline-none placeholder:text-ink-3"
        />
      </div>
      <div id={list} role="listbox" aria-label="Results" className="max-h-[50vh] overflow-auto p-1.5">
        {shown.map((command, index) => (
          // biome-ignore lint/a11y/useKeyWithClickEvents: the combobox handles keys, as the ARIA pattern requires
          <div
            key={command.id}
            id={`${list}-${index}`}
            role="option"
            tabIndex={-1}
            aria-selected={index === at}
            onMouseMove={() => setActive(index)}
            onClick={() => run(command)}
            className={cx(
              "flex items-center gap-2.5 rounded-md px-2.5 py-2 text-sm",
              index === at && "bg-accent-soft",
            )}
          >
            <span className="text-ink-3">
              <Icon name={command.icon} size={15} />
            </span>
            <span className="truncate text-ink">{command.label}</span>
            <span className="ml-auto whitespace-nowrap text-ink-3 text-xs">{command.kind}</span>
          </div>
        ))}
        {shown.length === 0 && <p className="px-2.5 py-3 text-ink-3 text-sm">No match. Try another name.</p>}
      </div>
    </>
  );
}
