/** What the service says of a judged run: signals by rank and step, live progress, transfers, detectors' accounts. */
import type { components } from "@/api/schema";

type Schemas = components["schemas"];
export type Cell = number | null;
export type JobSignals = Schemas["SignalsRead"];
export type JobProgress = Schemas["ProgressRead"];
export type ProgressState = JobProgress["state"];
export type RankProgress = Schemas["RankProgress"];
export type JobPairs = Schemas["PairsRead"];
export type Judgement = Schemas["JudgementRead"];
export type DetectorAccount = Schemas["DetectorRead"];
export type DetectorState = DetectorAccount["state"];
