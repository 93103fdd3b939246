/** The terms of the dashboard with their definitions. */
import { anchorOf, glossary, terms } from "@/lib/glossary";
import { Page } from "@/ui/page";

const sorted = [...terms].sort((a, b) => a.localeCompare(b));

export function GlossaryPage() {
  return (
    <Page title="Glossary" meta="Terms of the dashboard. Commands, the API, and metrics use the same terms.">
      <dl className="grid gap-x-8 gap-y-3 rounded-lg border border-line bg-surface p-4 text-sm sm:grid-cols-[12rem_minmax(0,1fr)] sm:gap-y-2.5">
        {sorted.map((name) => (
          <div key={name} id={anchorOf(name)} className="group scroll-mt-4 sm:contents">
            <dt className="font-medium text-ink group-target:text-accent">{name}</dt>
            <dd className="max-w-prose text-ink-2">{glossary[name]}</dd>
          </div>
        ))}
      </dl>
    </Page>
  );
}
