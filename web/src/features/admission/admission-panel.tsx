/** The questions of a scheduler as forms, which change nothing; and the pauses of admission. */
import { useState } from "react";
import { Segmented } from "@/ui/segmented";
import { CheckNodes } from "./check-nodes";
import { FindNodes } from "./find-nodes";
import { Pauses } from "./pauses";

const modes = [
  { value: "check", label: "Check nodes" },
  { value: "find", label: "Find nodes" },
] as const;

export function AdmissionPanel() {
  const [mode, setMode] = useState<(typeof modes)[number]["value"]>("check");
  const Form = mode === "check" ? CheckNodes : FindNodes;
  return (
    <div className="grid items-start gap-4 lg:grid-cols-[minmax(0,2fr)_minmax(0,3fr)]">
      <div className="lg:col-span-2">
        <Pauses />
      </div>
      <Form modes={<Segmented label="Mode" value={mode} onChange={setMode} options={modes} />} />
    </div>
  );
}
