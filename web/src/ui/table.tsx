/**
 * Tables: sort by header, move with j and k or the arrow keys, open with Enter.
 * Rows keep their identity while data is refreshed, and numbers are right-aligned.
 */
import {
  type ColumnDef,
  createColumnHelper,
  createSortedRowModel,
  type RowData,
  rowSortingFeature,
  type SortingState,
  sortFn_alphanumeric,
  sortFn_basic,
  tableFeatures,
  useTable,
} from "@tanstack/react-table";
import { type KeyboardEvent, useMemo } from "react";
import { cx } from "@/lib/cx";
import { Icon } from "./icon";

const features = tableFeatures({
  rowSortingFeature,
  sortedRowModel: createSortedRowModel(),
  sortFns: { alphanumeric: sortFn_alphanumeric, basic: sortFn_basic },
});

type Features = typeof features;
// biome-ignore lint/suspicious/noExplicitAny: a table's columns hold values of different types
export type Column<T extends RowData> = ColumnDef<Features, T, any>;
export const columnsFor = <T extends RowData>() => createColumnHelper<Features, T>();

interface Props<T extends RowData> {
  label: string;
  data: T[];
  columns: Column<T>[];
  rowId: (row: T) => string;
  onOpen?: (row: T) => void;
  /** `name` or `-name`, as in the URL. */
  sort?: string;
  /** The service sorts: rows stay in the order of `data`. */
  sorted?: boolean;
  onSort?: (sort: string) => void;
  /** Right-aligned columns. */
  right?: readonly string[];
  /** The column that takes the remaining width and is truncated first. */
  grow?: string;
  /** Extra classes by column, such as those that hide it on narrow screens. */
  columnClass?: Record<string, string>;
  selected?: string;
}

const parseSort = (sort: string | undefined): SortingState =>
  sort ? [{ id: sort.replace(/^-/, ""), desc: sort.startsWith("-") }] : [];

/** Move the focus between the rows of a table body; return whether the key was handled. */
export function moveRow(row: HTMLElement, key: string): boolean {
  const down = key === "j" || key === "ArrowDown";
  if (!down && key !== "k" && key !== "ArrowUp") return false;
  const next = down ? row.nextElementSibling : row.previousElementSibling;
  if (next instanceof HTMLElement) next.focus();
  return true;
}

export function DataTable<T extends RowData>(props: Props<T>) {
  const {
    label,
    data,
    columns,
    rowId,
    onOpen,
    sort,
    sorted = false,
    onSort,
    right = [],
    grow,
    columnClass = {},
    selected,
  } = props;
  const sorting = useMemo(() => parseSort(sort), [sort]);
  const table = useTable({
    features,
    columns,
    data,
    getRowId: rowId,
    state: { sorting },
    enableSortingRemoval: false,
    manualSorting: sorted,
    onSortingChange: (update) => {
      const [next] = typeof update === "function" ? update(sorting) : update;
      if (next) onSort?.(`${next.desc ? "-" : ""}${next.id}`);
    },
  });
  const side = (id: string) =>
    cx(
      right.includes(id) ? "text-right num" : "text-left",
      id === grow && "w-full min-w-44",
      columnClass[id],
    );

  function onKey(event: KeyboardEvent<HTMLTableRowElement>, row: T) {
    if (event.target !== event.currentTarget || event.metaKey || event.ctrlKey || event.altKey) return;
    if (event.key === "Enter") onOpen?.(row);
    else if (!moveRow(event.currentTarget, event.key)) return;
    event.preventDefault();
  }

  return (
    <div className="relative overflow-x-auto">
      <table aria-label={label} className="w-full border-collapse text-sm">
        <thead>
          {table.getHeaderGroups().map((group) => (
            <tr key={group.id} className="border-line border-b text-ink-3 text-xs">
              {group.headers.map((header) => {
                const direction = header.column.getIsSorted();
                const sortable = onSort !== undefined && header.column.getCanSort();
                return (
                  <th
                    key={header.id}
                    scope="col"
                    aria-sort={direction ? (direction === "desc" ? "descending" : "ascending") : undefined}
                    className={cx(
                      "h-8 whitespace-nowrap px-2.5 font-medium first:pl-4 last:pr-4",
                      side(header.column.id),
                    )}
                  >
                    {sortable ? (
                      <button
                        type="button"
                        onClick={header.column.getToggleSortingHandler()}
                        className={cx(
                          "inline-flex items-center gap-1 hover:text-ink",
                          direction && "text-ink",
                        )}
                      >
                        <table.FlexRender header={header} />
                        {direction && <Icon name={direction === "desc" ? "downArrow" : "up"} size={11} />}
                      </button>
                    ) : (
                      <table.FlexRender header={header} />
                    )}
                  </th>
                );
              })}
            </tr>
          ))}
        </thead>
        <tbody>
          {table.getRowModel().rows.map((row, index) => (
            <tr
              key={row.id}
              data-row
              tabIndex={index === 0 ? 0 : -1}
              aria-current={selected === row.id || undefined}
              onKeyDown={(event) => onKey(event, row.original)}
              onClick={(event) => {
                if (!(event.target as HTMLElement).closest("a,button,input")) onOpen?.(row.original);
              }}
              className={cx(
                "border-line border-b -outline-offset-2 last:border-b-0",
                onOpen && "cursor-pointer hover:bg-hover",
                selected === row.id && "bg-accent-soft",
              )}
            >
              {row.getAllCells().map((cell) => (
                <td
                  key={cell.id}
                  className={cx(
                    "h-9 px-2.5 align-middle first:pl-4 last:pr-4",
                    cell.column.id === grow ? "max-w-0" : "whitespace-nowrap",
                    side(cell.column.id),
                  )}
                >
                  <table.FlexRender cell={cell} />
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
