/** Errors as the service tells them (RFC 9457), and the two that only a browser can notice. */

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

/** Whatever the body of a failed response was, say something a person can act on. */
export function problemFrom(status: number, body: unknown): ProblemBody {
  if (isProblem(body)) return { ...body, detail: body.detail ?? "" };
  const detail =
    status === 502 || status === 504
      ? "A proxy answered in place of the service."
      : typeof body === "string" && body.length > 0 && body.length < 300
        ? body
        : "The service gave no further detail.";
  return { type: "about:blank", title: `The service answered ${status}`, status, detail };
}

export const unreachable: ProblemBody = {
  type: "urn:mainstay:problem:unreachable",
  title: "The service cannot be reached",
  status: 0,
  detail: "Training and recovery go on without it; probes keep their data and deliver it later.",
};

/** The problem behind any thrown value. */
export function problemOf(error: unknown): ProblemBody {
  if (error instanceof ProblemError) return error.problem;
  if (error instanceof TypeError) return unreachable;
  const detail = error instanceof Error ? error.message : String(error);
  return { type: "about:blank", title: "The dashboard failed", status: -1, detail };
}
