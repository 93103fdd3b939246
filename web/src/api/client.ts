/** The HTTP client for the service: typed by the OpenAPI document, authenticated by the session cookie. */
import createClient from "openapi-fetch";
import { ProblemError, problemFrom } from "./problem";
import type { paths } from "./schema";

export const client = createClient<paths>({ baseUrl: "", credentials: "same-origin" });

/** Return the data of a call, or throw its problem. */
export async function unwrap<T>(
  call: Promise<{ data?: T; error?: unknown; response: Response }>,
): Promise<T> {
  const { data, error, response } = await call;
  if (!response.ok) throw new ProblemError(problemFrom(response.status, error));
  return data as T;
}

/** Return the raw response of a call that has no JSON body, or throw its problem. */
export async function fetchRaw(path: string, init?: RequestInit): Promise<Response> {
  const response = await fetch(path, { credentials: "same-origin", ...init });
  if (response.ok || response.status === 304) return response;
  const text = await response.text();
  throw new ProblemError(problemFrom(response.status, parse(text)));
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** A key that makes a repeated click one action. */
export function idempotencyKey(): Record<"Idempotency-Key", string> {
  // randomUUID exists only in secure contexts; a site may serve the dashboard over plain HTTP inside its network.
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return { "Idempotency-Key": Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("") };
}
