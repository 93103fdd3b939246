/** How the map is drawn: what it groups nodes by, and how large. */
import { Segmented } from "@/ui/segmented";
import { type MapGroup, type MapZoom, mapGroups, mapZooms } from "./map-model";

export interface MapViewProps {
  group: MapGroup;
  onGroup: (group: MapGroup) => void;
  zoom: MapZoom;
  onZoom: (zoom: MapZoom) => void;
}

const groups = (Object.keys(mapGroups) as MapGroup[]).map((value) => ({
  value,
  label: mapGroups[value].label,
}));
const zooms = mapZooms.map((value) => ({ value, label: value.replace("x", "×") }));

export function MapView({ group, onGroup, zoom, onZoom }: MapViewProps) {
  return (
    <div className="mb-3 flex flex-wrap items-center gap-2">
      <span className="text-ink-3 text-xs">Group by</span>
      <Segmented label="Group nodes by" value={group} onChange={onGroup} options={groups} />
      <span className="ml-2 text-ink-3 text-xs">Size</span>
      <Segmented label="Size of the map" value={zoom} onChange={onZoom} options={zooms} />
    </div>
  );
}
