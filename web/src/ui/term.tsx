/** A term with its definition as a tooltip and a link to the glossary. */
import { Link } from "@tanstack/react-router";
import type { ReactNode } from "react";
import { anchorOf, glossary, type TermName } from "@/lib/glossary";
import { Tooltip } from "./tooltip";

export function Term({ name, children }: { name: TermName; children?: ReactNode }) {
  return (
    <Tooltip content={glossary[name]}>
      <Link
        to="/glossary"
        hash={anchorOf(name)}
        className="underline decoration-dotted decoration-line-strong underline-offset-4 hover:decoration-current"
      >
        {children ?? name}
      </Link>
    </Tooltip>
  );
}
