/** Types of the run analysis: signals by rank and step, progress, transfers, detector status. */
import type { components } from "@/api/schema";

type Schemas = components["schemas"];
export type Cell = number | null;
export type JobSignals = Schemas["SignalsRead"];
export type JobProgress = Schemas["ProgressRead"];
export type ProgressState = JobProgress["state"];
export type RankProgress = Schemas["RankProgress"];
export type JobPairs = Schemas["TransfersRead"];
export type DetectorStatusList = Schemas["DetectorStatusList"];
export type DetectorStatus = Schemas["DetectorStatusRead"];
export type DetectorState = DetectorStatus["state"];
