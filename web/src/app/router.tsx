/** Routes with typed search parameters. Each page is loaded at its first visit. */
import { createRootRoute, createRoute, createRouter, lazyRouteComponent } from "@tanstack/react-router";
import { parseDeviceSearch } from "@/features/devices/search";
import { parseFleetSearch } from "@/features/fleet/search";
import { parseIncidentsSearch } from "@/features/incidents/search";
import { parseJobSearch } from "@/features/jobs/search";
import { parseNodeSearch } from "@/features/nodes/search";
import { parseDetectorSearch, parsePolicySearch } from "@/features/policies/search";
import { parseRemediationSearch } from "@/features/remediation/search";
import { parseSimulationSearch } from "@/features/simulation/search";
import {
  parseCriterionSearch,
  parseNodeComparisonSearch,
  parseRunSearch,
  parseValidationSearch,
} from "@/features/validation/search";
import { localPath, type RawSearch } from "@/lib/search";
import { NotFound } from "./not-found";
import { RouteError } from "./route-error";
import { Shell } from "./shell";

const root = createRootRoute();

const signIn = createRoute({
  getParentRoute: () => root,
  path: "/sign-in",
  validateSearch: (raw: RawSearch): { next?: string; refused?: string } => ({
    next: localPath(raw, "next"),
    refused: typeof raw.refused === "string" ? raw.refused : undefined,
  }),
  component: lazyRouteComponent(() => import("@/features/auth/sign-in"), "SignIn"),
});

const acknowledge = createRoute({
  getParentRoute: () => root,
  path: "/acknowledge",
  component: lazyRouteComponent(() => import("@/features/notifications/acknowledge-page"), "AcknowledgePage"),
});

const shared = createRoute({
  getParentRoute: () => root,
  path: "/shared",
  component: lazyRouteComponent(() => import("@/features/post-mortems/shared-page"), "SharedPage"),
});

const shell = createRoute({ getParentRoute: () => root, id: "shell", component: () => <Shell /> });

const overview = createRoute({
  getParentRoute: () => shell,
  path: "/",
  component: lazyRouteComponent(() => import("@/features/overview/overview-page"), "OverviewPage"),
});

const fleet = createRoute({
  getParentRoute: () => shell,
  path: "/fleet",
  validateSearch: parseFleetSearch,
  component: lazyRouteComponent(() => import("@/features/fleet/fleet-page"), "FleetPage"),
});

const node = createRoute({
  getParentRoute: () => shell,
  path: "/nodes/$name",
  validateSearch: parseNodeSearch,
  component: lazyRouteComponent(() => import("@/features/nodes/node-page"), "NodePage"),
});

const jobs = createRoute({
  getParentRoute: () => shell,
  path: "/jobs",
  component: lazyRouteComponent(() => import("@/features/jobs/jobs-page"), "JobsPage"),
});

const job = createRoute({
  getParentRoute: () => shell,
  path: "/jobs/$id",
  validateSearch: parseJobSearch,
  component: lazyRouteComponent(() => import("@/features/jobs/job-page"), "JobPage"),
});

const incidents = createRoute({
  getParentRoute: () => shell,
  path: "/incidents",
  validateSearch: parseIncidentsSearch,
  component: lazyRouteComponent(() => import("@/features/incidents/incidents-page"), "IncidentsPage"),
});

const incident = createRoute({
  getParentRoute: () => shell,
  path: "/incidents/$id",
  component: lazyRouteComponent(() => import("@/features/incidents/incident-page"), "IncidentPage"),
});

const device = createRoute({
  getParentRoute: () => shell,
  path: "/devices/$device",
  validateSearch: parseDeviceSearch,
  component: lazyRouteComponent(() => import("@/features/devices/device-page"), "DevicePage"),
});

const remediation = createRoute({
  getParentRoute: () => shell,
  path: "/remediation",
  validateSearch: parseRemediationSearch,
  component: lazyRouteComponent(() => import("@/features/remediation/remediation-page"), "RemediationPage"),
});

const policy = createRoute({
  getParentRoute: () => shell,
  path: "/policies/xid",
  validateSearch: parsePolicySearch,
  component: lazyRouteComponent(() => import("@/features/policies/policy-page"), "PolicyPage"),
});

const detectorPolicies = createRoute({
  getParentRoute: () => shell,
  path: "/policies/detectors",
  validateSearch: parseDetectorSearch,
  component: lazyRouteComponent(() => import("@/features/policies/detectors-page"), "DetectorsPage"),
});

const validation = createRoute({
  getParentRoute: () => shell,
  path: "/validation",
  validateSearch: parseValidationSearch,
  component: lazyRouteComponent(() => import("@/features/validation/validation-page"), "ValidationPage"),
});

const validationResult = createRoute({
  getParentRoute: () => shell,
  path: "/validation/$id",
  component: lazyRouteComponent(() => import("@/features/validation/result-page"), "ResultPage"),
});

const nodeComparison = createRoute({
  getParentRoute: () => shell,
  path: "/validation/$id/comparison",
  validateSearch: parseNodeComparisonSearch,
  component: lazyRouteComponent(
    () => import("@/features/comparison/node-comparison-page"),
    "NodeComparisonPage",
  ),
});

const sweep = createRoute({
  getParentRoute: () => shell,
  path: "/validation/sweeps/$id",
  validateSearch: parseRunSearch,
  component: lazyRouteComponent(() => import("@/features/validation/run-page"), "RunPage"),
});

const criterion = createRoute({
  getParentRoute: () => shell,
  path: "/validation/criterion",
  validateSearch: parseCriterionSearch,
  component: lazyRouteComponent(() => import("@/features/validation/criterion-page"), "CriterionPage"),
});

const localization = createRoute({
  getParentRoute: () => shell,
  path: "/validation/fault-localizations/$id",
  component: lazyRouteComponent(
    () => import("@/features/localization/localization-page"),
    "LocalizationPage",
  ),
});

const simulation = createRoute({
  getParentRoute: () => shell,
  path: "/simulation",
  validateSearch: parseSimulationSearch,
  component: lazyRouteComponent(() => import("@/features/simulation/simulation-page"), "SimulationPage"),
});

const service = createRoute({
  getParentRoute: () => shell,
  path: "/service",
  component: lazyRouteComponent(() => import("@/features/service/service-page"), "ServicePage"),
});

const notifications = createRoute({
  getParentRoute: () => shell,
  path: "/notifications",
  component: lazyRouteComponent(
    () => import("@/features/notifications/notifications-page"),
    "NotificationsPage",
  ),
});

const report = createRoute({
  getParentRoute: () => shell,
  path: "/reliability",
  component: lazyRouteComponent(() => import("@/features/reports/report-page"), "ReportPage"),
});

const access = createRoute({
  getParentRoute: () => shell,
  path: "/access",
  component: lazyRouteComponent(() => import("@/features/access/access-page"), "AccessPage"),
});

const glossary = createRoute({
  getParentRoute: () => shell,
  path: "/glossary",
  component: lazyRouteComponent(() => import("@/features/glossary/glossary-page"), "GlossaryPage"),
});

const pages = [
  overview,
  fleet,
  node,
  device,
  jobs,
  job,
  incidents,
  incident,
  notifications,
  access,
  report,
  remediation,
  validation,
  validationResult,
  nodeComparison,
  sweep,
  criterion,
  localization,
  policy,
  detectorPolicies,
  simulation,
  service,
  glossary,
];

export const router = createRouter({
  routeTree: root.addChildren([signIn, acknowledge, shared, shell.addChildren(pages)]),
  defaultPreload: "intent",
  scrollRestoration: true,
  defaultNotFoundComponent: () => (
    <Shell>
      <NotFound />
    </Shell>
  ),
  defaultErrorComponent: RouteError,
});

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
}
