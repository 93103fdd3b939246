import type { Device, Node } from "@/api/types";
import { bytes } from "@/lib/format";
import { Age } from "@/ui/age";
import { CopyText } from "@/ui/copy";
import { Facts } from "@/ui/facts";
import { Panel } from "@/ui/panel";

export function Identity({ node }: { node: Node }) {
  const gpus = node.devices.filter((device) => device.kind === "gpu");
  return (
    <Panel title="Identity">
      <Facts
        facts={[
          { name: "Host", value: node.hostname },
          { name: "System", value: node.os },
          { name: "Kernel", value: node.kernel, mono: true },
          { name: "Processor", value: `${node.cpu_count} cores, ${bytes(node.memory_bytes)}` },
          { name: "Cohort", value: node.cohort },
          { name: "Probe", value: node.version, mono: true },
          { name: "Boot", value: <CopyText text={node.boot_id} shown={node.boot_id.slice(0, 13)} /> },
          { name: "Known", value: <Age at={node.first_seen_at} suffix="" /> },
        ]}
      />
      {gpus.length > 0 && (
        <ul className="mt-3 border-line border-t pt-3 text-sm">
          {gpus.map((device) => (
            <Gpu key={device.id} device={device} />
          ))}
        </ul>
      )}
    </Panel>
  );
}

function Gpu({ device }: { device: Device }) {
  return (
    <li className="flex items-baseline gap-2 py-0.5">
      <span className="num w-10 text-ink-3 text-xs">{device.id}</span>
      <span className="truncate text-ink" title={`${device.model}, ${bytes(device.memory_bytes)}`}>
        {device.model.replace(/^NVIDIA /, "")}
      </span>
      <span className="ml-auto">{device.serial && <CopyText text={device.serial} />}</span>
    </li>
  );
}
