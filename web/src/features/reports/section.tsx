/** A table of the report in a panel, or why there is none. */
import type { ReactNode } from "react";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";

interface SectionProps {
  title: string;
  about?: string;
  rows: readonly unknown[];
  empty: string;
  children: ReactNode;
}

export function Section({ title, about, rows, empty, children }: SectionProps) {
  return (
    <Panel title={title} about={about} flush>
      {rows.length > 0 ? (
        children
      ) : (
        <div className="px-4 pb-3">
          <Empty title={empty} />
        </div>
      )}
    </Panel>
  );
}
