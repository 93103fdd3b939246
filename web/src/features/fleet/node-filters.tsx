/** The filters of the node table: a text, and a picker with counts for each facet that divides the fleet. */
import { useEffect, useState } from "react";
import type { Facet, HealthState, NodeFacets } from "@/api/types";
import { integer } from "@/lib/format";
import { health, healthUrgency } from "@/lib/status-styles";
import { Button } from "@/ui/button";
import { Input } from "@/ui/field";
import { Picker } from "@/ui/picker";
import type { FleetSearch } from "./search";

type Filter = Pick<FleetSearch, "state" | "rack" | "cohort" | "job" | "q">;

interface Props {
  values: Filter;
  facets: NodeFacets | undefined;
  onChange: (change: Filter) => void;
  onClear: (() => void) | undefined;
}

const QUIET_MS = 200; // a request per pause in typing, not per key

export function NodeFilters({ values, facets, onChange, onClear }: Props) {
  return (
    <>
      <TextFilter value={values.q ?? ""} onChange={(q) => onChange({ q: q || undefined })} />
      <FacetPicker
        label="State"
        value={values.state}
        facets={healthUrgency.map(
          (value) => facets?.state.find((f) => f.value === value) ?? { value, count: 0 },
        )}
        name={(value) => health[value as HealthState].label}
        onChange={(state) => onChange({ state: state as HealthState | undefined })}
      />
      <FacetPicker
        label="Rack"
        value={values.rack}
        facets={facets?.rack}
        onChange={(rack) => onChange({ rack })}
      />
      <FacetPicker
        label="Cohort"
        value={values.cohort}
        facets={facets?.cohort}
        onChange={(cohort) => onChange({ cohort })}
      />
      <FacetPicker
        label="Job"
        value={values.job}
        facets={facets?.job}
        onChange={(job) => onChange({ job })}
      />
      {onClear && (
        <Button kind="ghost" icon="close" onClick={onClear}>
          Clear
        </Button>
      )}
    </>
  );
}

function TextFilter({ value, onChange }: { value: string; onChange: (value: string) => void }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  useEffect(() => {
    if (text === value) return;
    const timer = setTimeout(() => onChange(text), QUIET_MS);
    return () => clearTimeout(timer);
  });
  return (
    <Input
      type="search"
      aria-label="Filter nodes by name"
      placeholder="Name, rack or cohort"
      value={text}
      onChange={(event) => setText(event.target.value)}
      className="w-44"
    />
  );
}

interface FacetProps {
  label: string;
  value: string | undefined;
  facets: Facet[] | undefined;
  name?: (value: string) => string;
  onChange: (value: string | undefined) => void;
}

/** A picker of one facet. One value alone divides nothing, so it is not offered. */
function FacetPicker({ label, value, facets = [], name = (text) => text, onChange }: FacetProps) {
  if (value === undefined && facets.length < 2) return null;
  const known = value === undefined || facets.some((facet) => facet.value === value);
  const shown = known ? facets : [{ value, count: 0 }, ...facets];
  const any = `Any ${label.toLowerCase()}`;
  return (
    <Picker
      label={`Filter by ${label.toLowerCase()}`}
      value={value ?? ""}
      onChange={(next) => onChange(next || undefined)}
      placeholder={`Find a ${label.toLowerCase()}`}
      options={[
        { value: "", label: any, group: "" },
        ...[...shown]
          .sort((a, b) => (label === "State" ? 0 : a.value.localeCompare(b.value, "en", { numeric: true })))
          .map((facet) => ({
            value: facet.value,
            label: name(facet.value),
            group: "",
            note: integer(facet.count),
          })),
      ]}
    />
  );
}
