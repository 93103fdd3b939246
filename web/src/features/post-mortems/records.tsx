/** Records of a document: a table on wide screens and in print, one block a record on narrow screens. */
import type { ReactNode } from "react";
import { Empty } from "@/ui/notice";

interface Props {
  label: string;
  header: readonly string[];
  rows: readonly { key: string; cells: readonly ReactNode[] }[];
  /** In place of no records. */
  empty?: string;
}

export function Records({ label, header, rows, empty = "None." }: Props) {
  if (rows.length === 0) return <Empty title={empty} />;
  return (
    <table aria-label={label} className="w-full text-left text-sm max-sm:block">
      <thead className="max-sm:sr-only">
        <tr>
          {header.map((text) => (
            <th key={text} scope="col" className="py-1.5 pr-4 font-medium text-ink-3 text-xs">
              {text}
            </th>
          ))}
        </tr>
      </thead>
      <tbody className="max-sm:block">
        {rows.map(({ key, cells }) => (
          <tr key={key} className="break-inside-avoid border-line border-t max-sm:block max-sm:py-2">
            {cells.map((cell, at) => (
              <td
                // biome-ignore lint/suspicious/noArrayIndexKey: the columns of a table keep their places
                key={at}
                data-label={header[at]}
                className="num break-words py-1.5 pr-4 align-top max-sm:block max-sm:py-0.5 max-sm:before:mr-2 max-sm:before:text-ink-3 max-sm:before:text-xs max-sm:before:content-[attr(data-label)]"
              >
                {cell}
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}
