import { Link } from "@tanstack/react-router";
import { Page } from "@/ui/page";

export function NotFound() {
  return (
    <Page title="Page not found">
      <div className="max-w-prose text-ink-2">
        <p>
          <code className="font-mono text-sm">{window.location.pathname}</code> leads nowhere. A closed
          incident or validation keeps its page, so the link is probably incomplete.
        </p>
        <p className="mt-3 flex gap-4 font-medium text-accent">
          <Link to="/" className="hover:underline">
            Overview
          </Link>
          <Link to="/incidents" search={{}} className="hover:underline">
            Incidents
          </Link>
          <Link to="/fleet" search={{}} className="hover:underline">
            Fleet
          </Link>
        </p>
      </div>
    </Page>
  );
}
