import { expect, it } from "vitest";
import { ProblemError, problemFrom, problemOf } from "./problem";

it("keeps a problem document", () => {
  const body = {
    type: "urn:mainstay:problem:invalid-frame",
    title: "Bad frame",
    status: 422,
    detail: "truncated",
  };
  expect(problemFrom(422, body)).toEqual(body);
  expect(problemOf(new ProblemError(body))).toBe(body);
});

it("makes a readable problem of any other body", () => {
  expect(problemFrom(502, "<html>").detail).toContain("proxy");
  expect(problemFrom(500, undefined).title).toContain("500");
  expect(problemFrom(500, "x".repeat(1000)).detail).not.toContain("xxx");
});

it("distinguishes a broken connection from a broken dashboard", () => {
  expect(problemOf(new TypeError("Failed to fetch")).status).toBe(0);
  expect(problemOf(new RangeError("oops")).detail).toBe("oops");
});
