import type { Node } from "@/api/types";
import { bytes } from "@/lib/format";
import { Age } from "@/ui/age";
import { CopyText } from "@/ui/copy";
import { Facts } from "@/ui/facts";
import { Panel } from "@/ui/panel";

export function Identity({ node }: { node: Node }) {
  return (
    <Panel title="Identity">
      <Facts
        facts={[
          { name: "Host", value: node.hostname },
          ...(node.rack ? [{ name: "Rack", value: node.rack }] : []),
          ...(node.power_domain ? [{ name: "Power domain", value: node.power_domain }] : []),
          { name: "System", value: node.os },
          { name: "Kernel", value: node.kernel, mono: true },
          { name: "Processor", value: `${node.cpu_count} cores, ${bytes(node.memory_bytes)}` },
          { name: "Cohort", value: node.cohort, term: "cohort" },
          { name: "Node daemon", value: node.version, mono: true },
          { name: "Boot", value: <CopyText text={node.boot_id} shown={node.boot_id.slice(0, 13)} /> },
          ...(node.booted_at ? [{ name: "Uptime", value: <Age at={node.booted_at} suffix="" /> }] : []),
          { name: "First seen", value: <Age at={node.first_seen_at} suffix=" ago" /> },
        ]}
      />
    </Panel>
  );
}
