/** The schemas of the OpenAPI document under the names that the dashboard uses. Nothing here is written by hand twice. */
import type { components } from "./schema";

type Schemas = components["schemas"];

export type Me = Schemas["Me"];
export type Device = Schemas["DeviceRead"];
export type Node = Schemas["NodeRead"];
export type HealthState = Schemas["HealthState"];
export type Severity = Schemas["Severity"];
export type Verdict = Schemas["Verdict"];
export type FleetLayout = Schemas["LayoutRead"];
export type Slot = Schemas["SlotRead"];
export type Signal = Schemas["SignalRead"];
export type Telemetry = Schemas["QueryRead"];
export type TelemetrySeries = Schemas["SeriesRead"];
export type FleetEvent = Schemas["EventRead"];
export type Job = Schemas["JobRead"];
export type JobState = Job["state"];
export type TopologyRank = Schemas["TopologyRank"];
export type RankState = TopologyRank["state"];
export type Steps = Schemas["StepsRead"];
export type Incident = Schemas["IncidentRead"];
export type IncidentDetail = Schemas["IncidentDetail"];
export type IncidentState = Schemas["IncidentState"];
export type TimelineEntry = Schemas["TimelineEntry"];
export type Finding = Schemas["FindingRead"];
export type EvidenceSeries = Schemas["EvidenceSeries"];
export type Plan = Schemas["PlanRead"];
export type Alternative = Schemas["AlternativeRead"];
export type Action = Schemas["ActionRead"];
export type Suite = Schemas["SuiteRead"];
export type Validation = Schemas["ValidationRead"];
export type ValidationResult = Schemas["ValidationResult"];
export type Criterion = Schemas["CriterionRead"];
export type Sweep = Schemas["SweepRead"];
export type SweepRun = Schemas["SweepRun"];
export type Overview = Schemas["OverviewRead"];
export type Decision = Schemas["Decision"];
