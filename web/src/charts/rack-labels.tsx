/** The names of the racks over their boxes. A name selects its rack; on the keyboard, R does it in the map. */
import { memo } from "react";
import type { HeatRack } from "./heat-layout";

interface Props {
  racks: HeatRack[];
  /** The name of the box of nodes that are in no rack. */
  none: string;
  onToggle: ((rack: HeatRack) => void) | undefined;
}

export const RackLabels = memo(function RackLabels({ racks, none, onToggle }: Props) {
  return racks.map((rack) => (
    <button
      key={rack.name}
      type="button"
      tabIndex={-1}
      disabled={!onToggle}
      onClick={() => onToggle?.(rack)}
      title={onToggle && `Select ${rack.name || `the nodes with ${none}`}`}
      className="absolute h-4 truncate text-left text-2xs text-ink-3 enabled:hover:text-ink enabled:hover:underline"
      style={{ left: rack.x, top: rack.y, width: rack.width }}
    >
      {rack.name || none}
    </button>
  ));
});
