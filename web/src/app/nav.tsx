import { useQuery } from "@tanstack/react-query";
import { Link, useLocation, useNavigate } from "@tanstack/react-router";
import { meQuery, seesFleet, signOut } from "@/features/auth/queries";
import { overviewQuery } from "@/features/overview/queries";
import { plural } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { Button } from "@/ui/button";
import { Icon, type IconName } from "@/ui/icon";
import { Kbd } from "@/ui/kbd";
import { Menu, MenuItem } from "@/ui/menu";
import { LiveIndicator } from "./live";
import { setTheme, type ThemeChoice, useThemeChoice } from "./theme";

const places = [
  { to: "/", label: "Overview", icon: "overview", exact: true },
  { to: "/fleet", label: "Fleet", icon: "fleet", exact: false },
  { to: "/jobs", label: "Jobs", icon: "jobs", exact: false },
  { to: "/incidents", label: "Incidents", icon: "incidents", exact: false },
  { to: "/notifications", label: "Notifications", icon: "message", exact: false },
  { to: "/remediation", label: "Remediation", icon: "remediation", exact: false },
  { to: "/validation", label: "Validation", icon: "validation", exact: false },
  { to: "/policies/xid", label: "Policy", icon: "policy", exact: false },
  { to: "/reliability", label: "Reliability", icon: "report", exact: false },
  { to: "/simulation", label: "Simulation", icon: "simulation", exact: false },
] as const satisfies readonly { to: string; label: string; icon: IconName; exact: boolean }[];

/** What there is for members of teams who see their own jobs only. */
const ofTeams: ReadonlySet<string> = new Set(["/jobs", "/incidents"]);

/** The first part of a path: pages with the same one belong together. */
const sectionOf = (path: string) => path.split("/")[1];

export function Nav({ onPalette, onHelp }: { onPalette: () => void; onHelp: () => void }) {
  const me = useQuery(meQuery()).data;
  const fleet = seesFleet(me);
  const overview = useQuery({ ...overviewQuery(), refetchInterval: usePolling(), enabled: fleet });
  const active = overview.data?.active_incidents.length ?? 0;
  const section = useLocation({ select: (location) => sectionOf(location.pathname) });
  return (
    <nav
      aria-label="Main"
      className="sticky top-0 flex h-screen flex-col print:hidden gap-1 border-line border-r bg-surface px-2 py-3 lg:px-3"
    >
      <Link
        to={fleet ? "/" : "/jobs"}
        className="mb-3 flex items-center gap-2 rounded px-1.5 py-1"
        aria-label="Mainstay, overview"
      >
        <Logo />
        <span className="hidden font-semibold text-lg tracking-[-0.02em] lg:inline">Mainstay</span>
      </Link>
      {places
        .filter((place) => fleet || ofTeams.has(place.to))
        .map((place) => (
          <Link
            key={place.to}
            to={place.to}
            activeOptions={{ exact: place.exact, includeSearch: false }}
            data-status={section === sectionOf(place.to) ? "active" : undefined} // also for its other pages
            title={place.label}
            className="relative flex h-8 items-center gap-2.5 rounded-md px-2 font-medium text-ink-2 text-sm transition-colors duration-100 hover:bg-hover hover:text-ink data-[status=active]:bg-accent-soft data-[status=active]:text-ink"
          >
            <Icon name={place.icon} />
            <span className="hidden lg:inline">{place.label}</span>
            {place.to === "/incidents" && active > 0 && (
              <span
                className="num absolute -top-0.5 right-0 rounded bg-quarantined px-1 font-semibold text-2xs text-surface lg:static lg:ml-auto lg:px-1.5"
                title={plural(active, "active incident")}
              >
                {active}
              </span>
            )}
          </Link>
        ))}
      <button
        type="button"
        onClick={onPalette}
        className="mt-3 flex h-8 items-center gap-2 rounded-md border border-line px-2 text-ink-3 text-sm hover:border-line-strong hover:text-ink"
        aria-label="Search or jump"
      >
        <Icon name="search" size={14} />
        <span className="hidden lg:inline">Search or jump</span>
        <span className="ml-auto hidden lg:inline">
          <Kbd>/</Kbd>
        </span>
      </button>
      <div className="mt-auto flex flex-col gap-2">
        <LiveIndicator
          dataAge={overview.data?.data_age_seconds ?? null}
          readAt={overview.dataUpdatedAt / 1000}
        />
        <div className="flex flex-col items-center gap-0.5 lg:flex-row">
          <ThemeMenu />
          <Button kind="ghost" icon="help" aria-label="Keyboard shortcuts" onClick={onHelp} />
          <UserMenu />
        </div>
      </div>
    </nav>
  );
}

export function Logo({ size = 24 }: { size?: number }) {
  return (
    <svg
      viewBox="0 0 32 32"
      width={size}
      height={size}
      fill="none"
      stroke="currentColor"
      strokeLinecap="round"
      aria-hidden="true"
      className="shrink-0 text-accent"
    >
      <path d="M12 4v24" strokeWidth="3.2" />
      <path d="M12 5 28 28" strokeWidth="2.2" />
      <path d="M12 14 21.5 28" strokeWidth="1.6" />
      <path d="M4 28h25" strokeWidth="2.2" />
    </svg>
  );
}

const themes: { value: ThemeChoice; label: string; icon: IconName }[] = [
  { value: "system", label: "System", icon: "system" },
  { value: "light", label: "Light", icon: "sun" },
  { value: "dark", label: "Dark", icon: "moon" },
];

function ThemeMenu() {
  const choice = useThemeChoice();
  const current = themes.find((theme) => theme.value === choice) ?? themes[0];
  return (
    <Menu trigger={<Button kind="ghost" icon={current?.icon} aria-label={`Theme: ${current?.label}`} />}>
      {themes.map((theme) => (
        <MenuItem key={theme.value} onSelect={() => setTheme(theme.value)}>
          <Icon name={theme.icon} size={14} />
          {theme.label}
          {theme.value === choice && (
            <span className="ml-auto">
              <Icon name="check" size={14} />
            </span>
          )}
        </MenuItem>
      ))}
    </Menu>
  );
}

function UserMenu() {
  const me = useQuery(meQuery());
  const navigate = useNavigate();
  if (!me.data) return null;
  const leave = () =>
    void signOut()
      .catch(() => {}) // without the service, this browser still leaves the session
      .then(() => navigate({ to: "/sign-in", search: {} }));
  return (
    <Menu trigger={<Button kind="ghost" icon="person" aria-label={`Signed in as ${me.data.subject}`} />}>
      <div className="px-2.5 py-1.5">
        <p className="font-medium text-sm">{me.data.display_name}</p>
        {me.data.scopes.length > 0 && (
          <p className="text-ink-3 text-xs">Fleet: {me.data.scopes.join(", ")}</p>
        )}
        {me.data.job_scopes.length > 0 && (
          <p className="max-w-60 break-words text-ink-3 text-xs">
            {me.data.jobs.join(", ") || "No jobs"}: {me.data.job_scopes.join(", ")}
          </p>
        )}
      </div>
      <MenuItem onSelect={() => void navigate({ to: "/access" })}>
        <Icon name="person" size={14} />
        Access
      </MenuItem>
      <MenuItem onSelect={() => void navigate({ to: "/service" })}>
        <Icon name="system" size={14} />
        Service
      </MenuItem>
      <MenuItem onSelect={leave}>
        <Icon name="leave" size={14} />
        Sign out
      </MenuItem>
    </Menu>
  );
}
