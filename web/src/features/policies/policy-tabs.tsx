/** The two pages of policies. */
import { Link } from "@tanstack/react-router";

const tabs = [
  { to: "/policies/xid", label: "XIDs" },
  { to: "/policies/detectors", label: "Detectors" },
] as const;

export function PolicyTabs() {
  return (
    <nav aria-label="Policies" className="inline-flex h-8 items-center rounded-md bg-sunken p-0.5">
      {tabs.map((tab) => (
        <Link
          key={tab.to}
          to={tab.to}
          activeOptions={{ includeSearch: false }}
          className="inline-flex h-7 items-center rounded-[5px] px-2.5 font-medium text-ink-2 text-sm hover:text-ink data-[status=active]:bg-raised data-[status=active]:text-ink data-[status=active]:shadow-[0_0_0_1px_var(--line-strong)]"
        >
          {tab.label}
        </Link>
      ))}
    </nav>
  );
}
