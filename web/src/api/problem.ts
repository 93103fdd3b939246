/** Errors that the service returns (RFC 9457), and two that only a browser can detect. */

export interface ProblemBody {
  type: string;
  title: string;
  status: number;
  detail: string;
  errors?: { loc: (string | number)[]; msg: string }[] | null;
}

export class ProblemError extends Error {
  readonly problem: ProblemBody;

  constructor(problem: ProblemBody) {
    super(`${problem.title}: ${problem.detail}`);
    this.name = "ProblemError";
    this.problem = problem;
  }

  get status(): number {
    return this.problem.status;
  }
}

function isProblem(value: unknown): value is ProblemBody {
  return typeof value === "object" && value !== null && "title" in value && "status" in value;
}

/** Turn the body of a failed response, of any form, into a problem that an operator can act on. */
export function problemFrom(status: number, body: unknown): ProblemBody {
  if (isProblem(body)) return { ...body, detail: body.detail ?? "" };
  const detail =
    status === 502 || status === 504
      ? "A proxy answered instead of the service. Check the proxy and the service behind it."
      : typeof body === "string" && body.length > 0 && body.length < 300
        ? body
        : "The service returned no further detail. See the service log.";
  return { type: "about:blank", title: `The service returned ${status}`, status, detail };
}

export const unreachable: ProblemBody = {
  type: "urn:mainstay:problem:unreachable",
  title: "Cannot reach the service",
  status: 0,
  detail:
    "Training and recovery continue without it. Node daemons keep their data and deliver it later. Check that the service runs.",
};

/** The problem behind any thrown value. */
export function problemOf(error: unknown): ProblemBody {
  if (error instanceof ProblemError) return error.problem;
  if (error instanceof TypeError) return unreachable;
  const detail = error instanceof Error ? error.message : String(error);
  return { type: "about:blank", title: "The dashboard failed", status: -1, detail };
}
